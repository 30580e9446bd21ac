// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/store_state.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "common/check.h"

namespace ddprun::store {
namespace {

constexpr std::size_t kShownKeyBytes = 100;  // of a key in a message

constexpr std::size_t kMaxValueBytes = RequestLimits{}.max_value_bytes;
constexpr std::size_t kMaxListBytes = std::size_t{4} << 20;

// Work in look-ups of a key, as measured.
constexpr std::size_t kBytesALookUp = 2048;       // written or compared
constexpr std::size_t kLookUpsAWaitedKey = 3;     // it is in two lists
constexpr std::size_t kLookUpsAListedKey = 2;     // it is sorted
constexpr std::size_t kListedBytesALookUp = 256;  // bytes compared many times, and copied

// Follows std::stoll's rules: blanks and one sign in front, anything behind the digits. Exception:
// a number must end within kMostBytes, else reading might pass 64 MiB of blanks.
std::optional<std::int64_t> parse_number(std::string_view text) {
  constexpr std::size_t kMostBytes = 256;
  const bool is_cut = text.size() > kMostBytes;
  text = text.substr(0, kMostBytes);
  std::size_t at = 0;
  while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at]))) ++at;
  const bool plus = at < text.size() && text[at] == '+';
  if (plus) ++at;
  if (plus && at < text.size() && text[at] == '-') return std::nullopt;
  std::int64_t number = 0;
  const auto result = std::from_chars(text.data() + at, text.data() + text.size(), number);
  if (result.ec != std::errc()) return std::nullopt;
  if (is_cut && result.ptr == text.data() + text.size()) return std::nullopt;
  return number;
}

// Wraps around, as the addition of PyTorch's server does in practice.
std::int64_t wrapping_add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

std::string integer_bytes(std::int64_t value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

std::size_t bytes_of(const std::vector<std::string_view>& strings) {
  std::size_t bytes = 0;
  for (const std::string_view text : strings) bytes += text.size();
  return bytes;
}

}  // namespace

const Outcome& StoreState::step(ConnectionId from, const Request& request,
                                std::string_view growth_refusal) {
  growth_refusal_ = growth_refusal;
  outcome_.replies.clear();
  outcome_.close_reason.clear();
  outcome_.work = work_of(from, request);
  collect_freed();
  if (!offered_to_.empty()) offer_again(from, &request);
  switch (request.opcode) {
    case Opcode::kValidate:
      break;
    case Opcode::kPing:
      reply(from, std::string(reinterpret_cast<const char*>(&request.word), sizeof request.word));
      break;
    case Opcode::kSet:
      if (fits_value(request.key, request.value.size())) put(request.key, request.value);
      break;
    case Opcode::kCompareSet:
      compare_set(from, request);
      break;
    case Opcode::kGet:
      get(from, request.key);
      break;
    case Opcode::kAdd:
      add(from, request);
      break;
    case Opcode::kCheck: {
      const bool all =
          std::ranges::all_of(request.keys, [this](const HashedKey& key) { return exists(key); });
      reply_byte(from, all ? kReady : kNotReady);
      break;
    }
    case Opcode::kWait:
      wait(from, request);
      break;
    case Opcode::kGetNumKeys:
      reply_integer(from, static_cast<std::int64_t>(num_keys()));
      break;
    case Opcode::kDeleteKey:
      delete_key(from, request.key);
      break;
    case Opcode::kAppend:
      append(request);
      break;
    case Opcode::kMultiGet:
      for (std::string_view key : request.keys) get(from, key);
      break;
    case Opcode::kMultiSet:
      multi_set(request);
      break;
    case Opcode::kCancelWait:
      drop_waits_of(from);
      reply_byte(from, kWaitCanceled);
      break;
    case Opcode::kQueuePush:
      queue_push(request);
      break;
    case Opcode::kQueuePop:
      queue_pop(from, request);
      break;
    case Opcode::kQueueLen: {
      const auto* const queue = queues_.find(request.key);
      reply_integer(from, queue == nullptr ? 0 : std::ssize(queue->value));
      break;
    }
    case Opcode::kListKeys:
      list_keys(from);
      break;
    case Opcode::kBarrier:
      barrier(from, request);
      break;
  }
  return outcome_;
}

// glibc sets small blocks aside when they are freed, and joins all of them at the next large
// allocation. That took 2 s after 3 million DELETEs in random order. So this makes a large
// allocation while the small blocks are few.
void StoreState::collect_freed() {
  constexpr std::size_t kRequests = 16;      // With 1024 it takes 30 ms.
  constexpr std::size_t kLargeBytes = 2048;  // Blocks from 1024 bytes on are large.
  if (++num_requests_ % kRequests == 0) {
    large_block_ = std::make_unique_for_overwrite<char[]>(kLargeBytes);
  }
}

std::size_t StoreState::work_of(ConnectionId from, const Request& request) const {
  const std::size_t bytes = request.value.size() + request.expected.size();
  std::size_t work = 1 + request.keys.size() + bytes / kBytesALookUp;
  switch (request.opcode) {
    case Opcode::kWait:
      work += (kLookUpsAWaitedKey - 1) * request.keys.size();
      break;
    case Opcode::kCancelWait:
      if (const auto mine = waits_of_.find(from); mine != waits_of_.end()) {
        work += mine->second.num_keys;
      }
      break;
    case Opcode::kMultiSet:
      work += bytes_of(request.values) / kBytesALookUp;
      break;
    case Opcode::kAppend: {
      const auto* const found = values_.find(request.key);  // a value that a reply holds is copied
      if (found != nullptr && found->value.use_count() > 1) {
        work += found->value->size() / kBytesALookUp;
      }
      break;
    }
    case Opcode::kListKeys:
      if (list_bytes() <= kMaxListBytes) {
        work += kLookUpsAListedKey * num_keys() + list_bytes() / kListedBytesALookUp;
      }
      break;
    default:
      break;
  }
  return work;
}

std::size_t StoreState::num_waits_for(const Request& request) const {
  switch (request.opcode) {
    case Opcode::kGet:
    case Opcode::kMultiGet:
    case Opcode::kCheck:
    case Opcode::kWait:
    case Opcode::kQueueLen:
      return 0;
    default:
      break;
  }
  const bool has_key = kRequestFields[static_cast<int>(request.opcode)][0] == 'k';
  std::size_t num_waits = 0;
  const auto count = [&](const HashedKey& key) {
    if (const auto* const found = watchers_.find(key)) num_waits += found->value.size();
    if (const auto* const found = barriers_.find(key)) num_waits += found->value.size();
  };
  if (has_key) count(request.key);
  for (const std::string_view key : request.keys) count(key);
  return num_waits;
}

const Outcome& StoreState::disconnect(ConnectionId connection) {
  outcome_.replies.clear();
  outcome_.close_reason.clear();
  outcome_.work = 0;
  if (!waits_.empty()) drop_waits_of(connection);
  if (!offered_to_.empty()) offer_again(connection, nullptr);
  return outcome_;
}

// ---- keys ----

bool StoreState::fits(std::size_t more_bytes, std::size_t more_entries) {
  const std::size_t used = total_bytes();
  const std::size_t more = more_bytes + more_entries * kEntryBytes;
  if (more > 0 && !growth_refusal_.empty()) {
    refuse(std::string(growth_refusal_));
    return false;
  }
  if (more == 0 || (used <= max_total_bytes_ && more <= max_total_bytes_ - used)) return true;
  refuse("the store is full: it holds " + std::to_string(used) + " bytes, the request adds " +
         std::to_string(more) + ", the limit is " + std::to_string(max_total_bytes_));
  return false;
}

std::shared_ptr<std::string> StoreState::make_value(std::string_view bytes) {
  const auto counted = std::make_shared<CountedValue>(bytes, &live_value_bytes_);
  return {counted, &counted->bytes};
}

bool StoreState::fits_value(const HashedKey& key, std::size_t value_bytes) {
  const auto* const found = values_.find(key);
  if (found == nullptr) return fits(key.size() + value_bytes, 1);
  if (is_held(found->value)) return fits(value_bytes, 0);  // a reply holds the old value
  const std::size_t old_bytes = found->value->size();
  return value_bytes <= old_bytes || fits(value_bytes - old_bytes, 0);
}

bool StoreState::assign(const HashedKey& key, std::string_view value) {
  std::shared_ptr<std::string> made = make_value(value);
  const auto [entry, is_new] = values_.try_emplace(key);
  value_bytes_ += value.size();
  if (is_new) {
    key_bytes_ += key.size();
    ++num_entries_;
  } else {
    value_bytes_ -= entry->value->size();
  }
  entry->value = std::move(made);
  return is_new;
}

void StoreState::put(const HashedKey& key, std::string_view value) {
  const bool is_new = assign(key, value);
  if (waits_.empty()) return;
  key_written(key, is_new && !is_queue(key));
  end_barriers(key);
}

void StoreState::get(ConnectionId from, const HashedKey& key) {
  static const SharedValue kEmpty = std::make_shared<const std::string>();
  const auto* const found = values_.find(key);
  reply_value(from, found == nullptr ? kEmpty : found->value);
}

void StoreState::compare_set(ConnectionId from, const Request& request) {
  const auto* const found = values_.find(request.key);
  const bool absent = found == nullptr;
  const bool equal = absent ? request.expected.empty() : *found->value == request.expected;
  if (equal) {
    if (!fits_value(request.key, request.value.size())) return;
    put(request.key, request.value);
    get(from, request.key);
  } else if (absent) {
    // c10d's rule: the reply looks like success, but no key was created.
    reply_value(from, make_value(request.expected));
  } else {
    reply_value(from, found->value);
  }
}

bool StoreState::read_number(const HashedKey& key, std::int64_t* number) {
  *number = 0;
  const auto* const found = values_.find(key);
  if (found == nullptr) return true;
  const std::optional<std::int64_t> parsed = parse_number(*found->value);
  if (!parsed) {
    refuse("the value at \"" + std::string(key.substr(0, kShownKeyBytes)) + "\" is not a number");
    return false;
  }
  *number = *parsed;
  return true;
}

void StoreState::add(ConnectionId from, const Request& request) {
  std::int64_t number;
  if (!read_number(request.key, &number)) return;
  const std::int64_t sum = wrapping_add(number, request.number);
  const std::string text = std::to_string(sum);
  if (!fits_value(request.key, text.size())) return;
  put(request.key, text);
  reply_integer(from, sum);
}

void StoreState::delete_key(ConnectionId from, const HashedKey& key) {
  auto* const found = values_.find(key);
  if (found != nullptr) {
    key_bytes_ -= key.size();
    value_bytes_ -= found->value->size();
    --num_entries_;
    values_.erase(found);
    if (!waits_.empty() && !is_queue(key)) key_disappeared(key);
    reply_integer(from, 1);
  } else {
    reply_integer(from, 0);
  }
}

bool StoreState::forget_some() {
  constexpr int kAtOnce = 1'000;
  for (int count = 0; count < kAtOnce; ++count) {
    collect_freed();
    if (auto* const oldest = values_.first(); oldest != nullptr) {
      key_bytes_ -= oldest->key.size();
      value_bytes_ -= oldest->value->size();
      values_.erase(oldest);
    } else if (auto* const queue = queues_.first(); queue != nullptr) {
      key_bytes_ -= queue->key.size();
      value_bytes_ -= queue->value.front()->size();
      queue->value.pop_front();
      if (queue->value.empty()) queues_.erase(queue);
    } else {
      return false;
    }
    --num_entries_;
  }
  return true;
}

void StoreState::append(const Request& request) {
  auto* const found = values_.find(request.key);
  if (found == nullptr) {
    if (fits_value(request.key, request.value.size())) put(request.key, request.value);
    return;
  }
  std::shared_ptr<std::string>& value = found->value;
  if (value->size() + request.value.size() > kMaxValueBytes) {
    return refuse("the value would have " + std::to_string(value->size() + request.value.size()) +
                  " bytes, the limit is " + std::to_string(kMaxValueBytes));
  }
  const bool is_shared = value.use_count() > 1;  // a reply holds it
  if (!fits((is_held(value) ? value->size() : 0) + request.value.size(), 0)) return;
  if (is_shared) value = make_value(*value);
  value->append(request.value);
  live_value_bytes_ += request.value.size();
  value_bytes_ += request.value.size();
  if (waits_.empty()) return;
  key_written(request.key, false);
  end_barriers(request.key);
}

void StoreState::multi_set(const Request& request) {
  if (!fits(bytes_of(request.keys) + bytes_of(request.values), request.keys.size())) return;
  for (std::size_t i = 0; i < request.keys.size(); ++i) put(request.keys[i], request.values[i]);
}

void StoreState::list_keys(ConnectionId from) {
  if (list_bytes() > kMaxListBytes) {
    return refuse("the keys have " + std::to_string(list_bytes()) + " bytes, a reply at most " +
                  std::to_string(kMaxListBytes));
  }
  // Sorted, so that the reply doesn't depend on the keys' history: load() may change their order.
  std::vector<std::string_view> keys;
  keys.reserve(values_.size());
  values_.for_each([&](const auto& entry) { keys.push_back(entry.key); });
  std::ranges::sort(keys);
  std::string bytes = integer_bytes(std::ssize(keys));
  for (const std::string_view key : keys) append_vector(key, &bytes);
  reply(from, std::move(bytes));
}

// ---- queues ----

void StoreState::queue_push(const Request& request) {
  if (!fits(request.key.size() + request.value.size(), 1)) return;
  const auto [queue, is_new] = queues_.try_emplace(request.key);
  queue->value.push_back(make_value(request.value));
  key_bytes_ += request.key.size();
  value_bytes_ += request.value.size();
  ++num_entries_;
  if (waits_.empty()) return;
  const auto* const watchers = watchers_.find(request.key);
  if (watchers == nullptr) return;
  if (is_new && !values_.contains(request.key)) count_missing(watchers->value, -1);
  offer_element(request.key);
}

void StoreState::queue_pop(ConnectionId from, const Request& request) {
  auto* const queue = queues_.find(request.key);
  if (queue == nullptr) {
    reply_integer(from, 0);
    return;
  }
  const auto length = std::ssize(queue->value);
  const SharedValue value = std::move(queue->value.front());
  queue->value.pop_front();
  if (queue->value.empty()) {
    queues_.erase(queue);
    if (!waits_.empty() && !values_.contains(request.key)) key_disappeared(request.key);
  }
  key_bytes_ -= request.key.size();
  value_bytes_ -= value->size();
  --num_entries_;
  reply_value(from, value, integer_bytes(length));
}

// One element ends only one WAIT, the oldest that is complete, so that consumers don't race for it.
void StoreState::offer_element(const HashedKey& key) {
  const auto* const watchers = watchers_.find(key);
  if (watchers == nullptr) return;
  for (const ConnectionId woken : end_complete(watchers->value, 1)) {
    offered_to_[woken].emplace_back(key);
  }
}

// An offer lasts until the connection's next request. If that does not take the element, the next
// waiter gets the offer.
void StoreState::offer_again(ConnectionId connection, const Request* next_request) {
  const auto offers = offered_to_.find(connection);
  if (offers == offered_to_.end()) return;
  const std::vector<std::string> keys = std::move(offers->second);
  offered_to_.erase(offers);
  for (const std::string& key : keys) {
    const bool taken = next_request && next_request->opcode == Opcode::kQueuePop &&
                       next_request->key.text() == key;
    if (!taken && is_queue(key)) offer_element(key);
  }
}

// ---- waits ----

void StoreState::wait(ConnectionId from, const Request& request) {
  const bool all =
      std::ranges::all_of(request.keys, [&](const HashedKey& key) { return exists(key); });
  if (all) {
    reply_byte(from, kStopWaiting);
  } else if (may_wait(from, request.keys)) {
    add_wait(from, request.keys, false);
  }
}

void StoreState::barrier(ConnectionId from, const Request& request) {
  std::int64_t number;
  if (!read_number(request.key, &number)) return;
  const std::int64_t num_arrived = wrapping_add(number, 1);
  const bool complete = num_arrived >= request.number;
  const std::string text = std::to_string(num_arrived);
  const std::vector<std::string_view> keys = {request.key.text()};
  if (!fits_value(request.key, text.size()) || (!complete && !may_wait(from, keys))) return;
  const bool is_new = assign(request.key, text);
  if (!waits_.empty()) {
    key_written(request.key, is_new && !is_queue(request.key));
    if (complete) end_barriers(request.key);
  }
  if (complete) {
    reply_byte(from, kStopWaiting);
  } else {
    add_wait(from, keys, true);
  }
}

bool StoreState::may_wait(ConnectionId from, const std::vector<std::string_view>& keys) {
  const auto mine = waits_of_.find(from);
  if (mine != waits_of_.end() && mine->second.waits.size() >= kMaxWaitsPerConnection) {
    refuse("more than " + std::to_string(kMaxWaitsPerConnection) + " waits at a time");
    return false;
  }
  if (mine != waits_of_.end() && mine->second.num_keys + keys.size() > kMaxWaitedKeys) {
    refuse("more than " + std::to_string(kMaxWaitedKeys) + " keys waited for at a time");
    return false;
  }
  return fits(bytes_of(keys), 1 + keys.size());
}

void StoreState::add_wait(ConnectionId from, const std::vector<std::string_view>& keys,
                          bool is_barrier) {
  const auto wait = waits_.insert(waits_.end(), Wait{from, is_barrier, 0, {}});
  wait->watches.reserve(keys.size());
  SteadyTable<Watchers>& watched = is_barrier ? barriers_ : watchers_;
  for (const HashedKey key : keys) {
    auto* const entry = watched.try_emplace(key).first;
    Watchers& watchers = entry->value;
    if (!watchers.empty() && watchers.back() == wait) continue;  // the wait names the key twice
    wait->watches.push_back({entry, watchers.insert(watchers.end(), wait)});
    if (!is_barrier && !exists(key)) ++wait->num_missing;
    wait_bytes_ += key.size();
  }
  num_watches_ += wait->watches.size();
  OwnWaits& mine = waits_of_[from];
  mine.waits.push_back(wait);
  mine.num_keys += wait->watches.size();
}

// If the key had a value already and is no queue, no wait changes.
void StoreState::key_written(const HashedKey& key, bool is_new) {
  if (!is_new && !is_queue(key)) return;
  const auto* const found = watchers_.find(key);
  if (found == nullptr) return;
  if (is_new) count_missing(found->value, -1);
  end_complete(found->value, found->value.size());
}

void StoreState::key_disappeared(const HashedKey& key) {
  const auto* const found = watchers_.find(key);
  if (found != nullptr) count_missing(found->value, 1);
}

void StoreState::count_missing(const Watchers& watchers, int more) {
  outcome_.work += watchers.size();
  for (const WaitList::iterator wait : watchers) wait->num_missing += more;
}

std::vector<ConnectionId> StoreState::end_complete(const Watchers& watchers, std::size_t most) {
  outcome_.work += watchers.size();
  std::vector<WaitList::iterator> complete;
  for (const WaitList::iterator wait : watchers) {
    if (complete.size() == most) break;
    if (wait->num_missing == 0) complete.push_back(wait);
  }
  std::vector<ConnectionId> ended;
  for (const WaitList::iterator wait : complete) {
    ended.push_back(wait->connection);
    end_wait(wait);
  }
  return ended;
}

void StoreState::end_barriers(const HashedKey& key) {
  const auto* const found = barriers_.find(key);
  if (found == nullptr) return;
  outcome_.work += found->value.size();
  const Watchers arrived = found->value;
  for (const WaitList::iterator wait : arrived) end_wait(wait);
}

void StoreState::end_wait(WaitList::iterator wait) {
  reply_byte(wait->connection, kStopWaiting);
  const auto mine = waits_of_.find(wait->connection);
  DDPRUN_CHECK(mine != waits_of_.end());
  std::vector<WaitList::iterator>& waits = mine->second.waits;
  waits.erase(std::ranges::find(waits, wait));
  mine->second.num_keys -= wait->watches.size();
  if (waits.empty()) waits_of_.erase(mine);
  drop_wait(wait);
}

void StoreState::drop_wait(WaitList::iterator wait) {
  outcome_.work += wait->watches.size();
  num_watches_ -= wait->watches.size();
  SteadyTable<Watchers>& watched = wait->is_barrier ? barriers_ : watchers_;
  for (const Watch& watch : wait->watches) {
    wait_bytes_ -= watch.key->key.size();
    watch.key->value.erase(watch.place);
    if (watch.key->value.empty()) watched.erase(watch.key);
  }
  waits_.erase(wait);
}

void StoreState::drop_waits_of(ConnectionId connection) {
  const auto mine = waits_of_.find(connection);
  if (mine == waits_of_.end()) return;
  for (const WaitList::iterator wait : mine->second.waits) drop_wait(wait);
  waits_of_.erase(mine);
}

// ---- replies ----

void StoreState::reply_integer(ConnectionId to, std::int64_t value) {
  reply(to, integer_bytes(value));
}

void StoreState::reply_value(ConnectionId to, const SharedValue& value, std::string prefix) {
  if (value->size() <= kCopiedValueBytes) {
    prefix.reserve(prefix.size() + sizeof(std::uint64_t) + value->size());
    append_vector(*value, &prefix);
    reply(to, std::move(prefix));
  } else {
    append_u64(value->size(), &prefix);
    outcome_.replies.push_back(Reply{to, std::move(prefix), value});
  }
}

// ---- saving and loading ----

// Waits are saved in their order, which decides who is woken first. Earlier versions wrote and read
// one group of waits for each key; now all waits are one group.
void StoreState::save(std::string* out) const {
  append_u64(values_.size(), out);
  values_.for_each([out](const auto& entry) {
    append_vector(entry.key, out);
    append_vector(*entry.value, out);
  });
  append_u64(queues_.size(), out);
  queues_.for_each([out](const auto& entry) {
    append_vector(entry.key, out);
    append_u64(entry.value.size(), out);
    for (const SharedValue& value : entry.value) append_vector(*value, out);
  });
  append_u64(1, out);
  save_waits(false, out);
  save_waits(true, out);
  append_u64(offered_to_.size(), out);
  for (const auto& [connection, keys] : offered_to_) {
    append_u64(connection, out);
    append_u64(keys.size(), out);
    for (const std::string& key : keys) append_vector(key, out);
  }
}

void StoreState::load(SnapshotReader& in) {
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    const std::string_view key = in.text();
    assign(key, in.text());
  }
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    const std::string_view key = in.text();
    auto& queue = queues_.try_emplace(key).first->value;
    for (std::uint64_t elements = in.integer(); elements > 0; --elements) {
      const std::string_view value = in.text();
      queue.push_back(make_value(value));
      key_bytes_ += key.size();
      value_bytes_ += value.size();
      ++num_entries_;
    }
  }
  for (std::uint64_t groups = in.integer(); groups > 0; --groups) {
    load_waits(in, false);
    load_waits(in, true);
  }
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    auto& keys = offered_to_[static_cast<ConnectionId>(in.integer())];
    for (std::uint64_t offers = in.integer(); offers > 0; --offers) keys.emplace_back(in.text());
  }
}

void StoreState::save_waits(bool are_barriers, std::string* out) const {
  const auto is_such = [&](const Wait& wait) { return wait.is_barrier == are_barriers; };
  append_u64(static_cast<std::uint64_t>(std::ranges::count_if(waits_, is_such)), out);
  for (const Wait& wait : waits_) {
    if (!is_such(wait)) continue;
    const auto missing = std::ranges::find_if(
        wait.watches, [&](const Watch& watch) { return !exists(watch.key->key); });
    const auto index = missing == wait.watches.end() ? 0 : missing - wait.watches.begin();
    append_u64(wait.connection, out);
    append_u64(static_cast<std::uint64_t>(index), out);  // only earlier versions need it
    append_u64(wait.watches.size(), out);
    for (const Watch& watch : wait.watches) append_vector(watch.key->key, out);
  }
}

void StoreState::load_waits(SnapshotReader& in, bool are_barriers) {
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    const auto connection = static_cast<ConnectionId>(in.integer());
    in.integer();
    std::vector<std::string_view> keys;
    for (std::uint64_t more = in.integer(); more > 0; --more) keys.push_back(in.text());
    if (keys.empty()) {
      throw Error(ErrorCode::kProtocol, "what was kept of a store has a wait for nothing");
    }
    add_wait(connection, keys, are_barriers);
  }
}

}  // namespace ddprun::store
