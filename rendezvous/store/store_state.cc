// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/store_state.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "common/check.h"

namespace ddprun::store {
namespace {

constexpr std::size_t kShownKeyBytes = 100;  // in messages

// std::stoll's rules: blanks and one sign in front, anything behind the digits.
std::optional<std::int64_t> parse_number(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at]))) ++at;
  const bool plus = at < text.size() && text[at] == '+';
  if (plus) ++at;
  if (plus && at < text.size() && text[at] == '-') return std::nullopt;
  std::int64_t number = 0;
  const auto result = std::from_chars(text.data() + at, text.data() + text.size(), number);
  if (result.ec != std::errc()) return std::nullopt;
  return number;
}

// Wraps, as the addition of PyTorch's server does in practice.
std::int64_t wrapping_add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

std::string integer_bytes(std::int64_t value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

std::size_t bytes_of(const std::vector<std::string>& keys) {
  std::size_t bytes = keys.size() * sizeof(std::string);
  for (const std::string& key : keys) bytes += key.size();
  return bytes;
}

}  // namespace

const Outcome& StoreState::step(ConnectionId from, const Request& request,
                                std::string_view growth_refusal) {
  growth_refusal_ = growth_refusal;
  outcome_.replies.clear();
  outcome_.close_reason.clear();
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
      const bool all = std::all_of(request.keys.begin(), request.keys.end(),
                                   [this](std::string_view key) { return exists(key); });
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
      const auto queue = queues_.find(request.key);
      reply_integer(from, queue == queues_.end() ? 0 : std::ssize(queue->second));
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

const Outcome& StoreState::disconnect(ConnectionId connection) {
  outcome_.replies.clear();
  outcome_.close_reason.clear();
  if (num_waits_ > 0) drop_waits_of(connection);
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

bool StoreState::fits_value(std::string_view key, std::size_t value_bytes) {
  const auto found = values_.find(key);
  if (found == values_.end()) return fits(key.size() + value_bytes, 1);
  if (is_held(found->second)) return fits(value_bytes, 0);  // a reply keeps the old one
  const std::size_t old_bytes = found->second->size();
  return value_bytes <= old_bytes || fits(value_bytes - old_bytes, 0);
}

void StoreState::assign(std::string_view key, std::string_view value) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    values_.emplace(key, make_value(value));
    key_bytes_ += key.size();
    value_bytes_ += value.size();
    ++num_entries_;
    return;
  }
  value_bytes_ += value.size();
  value_bytes_ -= found->second->size();
  found->second = make_value(value);
}

void StoreState::put(std::string_view key, std::string_view value) {
  assign(key, value);
  if (num_waits_ > 0) key_appeared(key, true);
}

void StoreState::get(ConnectionId from, std::string_view key) {
  static const SharedValue kEmpty = std::make_shared<const std::string>();
  const auto found = values_.find(key);
  if (found == values_.end()) {
    reply_value(from, kEmpty);
  } else {
    reply_value(from, found->second);
  }
}

void StoreState::compare_set(ConnectionId from, const Request& request) {
  const auto found = values_.find(request.key);
  const bool absent = found == values_.end();
  const bool equal = absent ? request.expected.empty() : *found->second == request.expected;
  if (equal) {
    if (!fits_value(request.key, request.value.size())) return;
    put(request.key, request.value);
    get(from, request.key);
  } else if (absent) {
    // c10d's rule: looks like success, and nothing was created.
    reply_value(from, make_value(request.expected));
  } else {
    reply_value(from, found->second);
  }
}

bool StoreState::read_number(std::string_view key, std::int64_t* number) {
  *number = 0;
  const auto found = values_.find(key);
  if (found == values_.end()) return true;
  const std::optional<std::int64_t> parsed = parse_number(*found->second);
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

void StoreState::delete_key(ConnectionId from, std::string_view key) {
  const auto found = values_.find(key);
  if (found != values_.end()) {
    key_bytes_ -= key.size();
    value_bytes_ -= found->second->size();
    --num_entries_;
    values_.erase(found);
    reply_integer(from, 1);
  } else {
    reply_integer(from, 0);
  }
}

void StoreState::append(const Request& request) {
  const auto found = values_.find(request.key);
  if (found == values_.end()) {
    if (fits_value(request.key, request.value.size())) put(request.key, request.value);
    return;
  }
  std::shared_ptr<std::string>& value = found->second;
  const bool is_shared = value.use_count() > 1;  // a reply has it
  if (!fits((is_held(value) ? value->size() : 0) + request.value.size(), 0)) return;
  if (is_shared) value = make_value(*value);
  value->append(request.value);
  live_value_bytes_ += request.value.size();
  value_bytes_ += request.value.size();
  if (num_waits_ > 0) key_appeared(request.key, true);
}

void StoreState::multi_set(const Request& request) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < request.keys.size(); ++i) {
    bytes += request.keys[i].size() + request.values[i].size();
  }
  if (!fits(bytes, request.keys.size())) return;
  // All first, so that nobody is woken who could see a part.
  for (std::size_t i = 0; i < request.keys.size(); ++i) assign(request.keys[i], request.values[i]);
  if (num_waits_ == 0) return;
  for (std::string_view key : request.keys) key_appeared(key, true);
}

void StoreState::list_keys(ConnectionId from) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  if (const std::size_t size = key_bytes_ + values_.size() * sizeof(std::uint64_t);
      size > kMostBytes) {
    return refuse("the keys have " + std::to_string(size) + " bytes, a reply at most " +
                  std::to_string(kMostBytes));
  }
  // In an order that does not depend on how the content came about (see load).
  std::vector<std::string_view> keys;
  keys.reserve(values_.size());
  for (const auto& [key, value] : values_) keys.push_back(key);
  std::ranges::sort(keys);
  std::string bytes = integer_bytes(std::ssize(keys));
  for (const std::string_view key : keys) append_vector(key, &bytes);
  reply(from, std::move(bytes));
}

// ---- queues ----

void StoreState::queue_push(const Request& request) {
  if (!fits(request.key.size() + request.value.size(), 1)) return;
  auto queue = queues_.find(request.key);
  if (queue == queues_.end()) queue = queues_.try_emplace(std::string(request.key)).first;
  queue->second.push_back(make_value(request.value));
  key_bytes_ += request.key.size();
  value_bytes_ += request.value.size();
  ++num_entries_;
  if (num_waits_ > 0) offer_element(request.key);
}

void StoreState::queue_pop(ConnectionId from, const Request& request) {
  const auto queue = queues_.find(request.key);
  if (queue == queues_.end()) {
    reply_integer(from, 0);
    return;
  }
  const auto length = std::ssize(queue->second);
  const SharedValue value = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) queues_.erase(queue);
  key_bytes_ -= request.key.size();
  value_bytes_ -= value->size();
  --num_entries_;
  reply_value(from, value, integer_bytes(length));
}

// One element ends one WAIT, the oldest that it completes, so that consumers don't race for it.
void StoreState::offer_element(std::string_view key) {
  const auto watchers = watchers_.find(key);
  if (watchers == watchers_.end()) return;
  WaitList& waits = watchers->second.waits;
  while (!waits.empty()) {
    const auto oldest = waits.begin();
    const std::size_t missing = find_missing(oldest->keys, oldest->watched);
    if (missing < oldest->keys.size()) {
      watch_next(waits, oldest, missing);
      continue;
    }
    offered_to_[oldest->connection].emplace_back(key);
    end_wait(waits, oldest);
    break;
  }
  forget_if_empty(key);
}

// An offer lasts until the connection's next request: if that does not take
// the element, the next waiter is offered it.
void StoreState::offer_again(ConnectionId connection, const Request* next_request) {
  const auto offers = offered_to_.find(connection);
  if (offers == offered_to_.end()) return;
  const std::vector<std::string> keys = std::move(offers->second);
  offered_to_.erase(offers);
  for (const std::string& key : keys) {
    const bool taken =
        next_request && next_request->opcode == Opcode::kQueuePop && next_request->key == key;
    if (!taken && queues_.contains(key)) offer_element(key);
  }
}

// ---- waits ----

std::size_t StoreState::find_missing(const std::vector<std::string>& keys, std::size_t from) const {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t index = from + i < keys.size() ? from + i : from + i - keys.size();
    if (!exists(keys[index])) return index;
  }
  return keys.size();
}

void StoreState::wait(ConnectionId from, const Request& request) {
  std::size_t missing = 0;
  while (missing < request.keys.size() && exists(request.keys[missing])) ++missing;
  if (missing == request.keys.size()) {
    reply_byte(from, kStopWaiting);
    return;
  }
  Wait wait;
  wait.connection = from;
  wait.keys.assign(request.keys.begin(), request.keys.end());
  wait.watched = missing;
  if (may_wait(wait)) add_wait(std::move(wait));
}

void StoreState::barrier(ConnectionId from, const Request& request) {
  std::int64_t number;
  if (!read_number(request.key, &number)) return;
  const std::int64_t num_arrived = wrapping_add(number, 1);
  const bool complete = num_arrived >= request.number;
  const std::string text = std::to_string(num_arrived);
  Wait wait;
  wait.connection = from;
  wait.keys.emplace_back(request.key);
  wait.is_barrier = true;
  if (!fits_value(request.key, text.size()) || (!complete && !may_wait(wait))) return;
  assign(request.key, text);
  if (num_waits_ > 0) key_appeared(request.key, complete);
  if (complete) {
    reply_byte(from, kStopWaiting);
  } else {
    add_wait(std::move(wait));
  }
}

bool StoreState::may_wait(const Wait& wait) {
  const auto mine = waits_of_.find(wait.connection);
  if (mine != waits_of_.end() && mine->second.size() >= kMaxWaitsPerConnection) {
    refuse("more than " + std::to_string(kMaxWaitsPerConnection) + " waits at a time");
    return false;
  }
  return fits(bytes_of(wait.keys), 1);
}

void StoreState::add_wait(Wait wait) {
  wait_bytes_ += bytes_of(wait.keys);
  ++num_waits_;
  std::vector<WaitList::iterator>& mine = waits_of_[wait.connection];
  WaitList& list = watchers_[wait.keys[wait.watched]].list_of(wait);
  mine.push_back(list.insert(list.end(), std::move(wait)));
}

void StoreState::key_appeared(std::string_view key, bool wake_barriers) {
  const auto found = watchers_.find(key);
  if (found == watchers_.end()) return;
  Watchers& watchers = found->second;
  while (!watchers.waits.empty()) {
    const auto wait = watchers.waits.begin();
    const std::size_t missing = find_missing(wait->keys, wait->watched);
    if (missing < wait->keys.size()) {
      watch_next(watchers.waits, wait, missing);
    } else {
      end_wait(watchers.waits, wait);
    }
  }
  while (wake_barriers && !watchers.barriers.empty()) {
    end_wait(watchers.barriers, watchers.barriers.begin());
  }
  forget_if_empty(key);
}

void StoreState::forget_if_empty(std::string_view key) {
  const auto found = watchers_.find(key);
  if (found->second.empty()) watchers_.erase(found);
}

void StoreState::end_wait(WaitList& list, WaitList::iterator wait) {
  reply_byte(wait->connection, kStopWaiting);
  const auto mine = waits_of_.find(wait->connection);
  DDPRUN_CHECK(mine != waits_of_.end());
  std::vector<WaitList::iterator>& waits = mine->second;
  waits.erase(std::find(waits.begin(), waits.end(), wait));
  if (waits.empty()) waits_of_.erase(mine);
  forget_wait(*wait);
  list.erase(wait);
}

void StoreState::watch_next(WaitList& list, WaitList::iterator wait, std::size_t missing) {
  wait->watched = missing;
  WaitList& next = watchers_[wait->keys[missing]].waits;
  next.splice(next.end(), list, wait);
}

void StoreState::forget_wait(const Wait& wait) {
  wait_bytes_ -= bytes_of(wait.keys);
  --num_waits_;
}

void StoreState::drop_waits_of(ConnectionId connection) {
  const auto mine = waits_of_.find(connection);
  if (mine == waits_of_.end()) return;
  for (const WaitList::iterator wait : mine->second) {
    forget_wait(*wait);
    const auto watchers = watchers_.find(wait->keys[wait->watched]);
    watchers->second.list_of(*wait).erase(wait);
    if (watchers->second.empty()) watchers_.erase(watchers);
  }
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

// ---- as bytes and back ----

// In the order of what waits: who is woken first depends on it.
void StoreState::save(std::string* out) const {
  append_u64(values_.size(), out);
  for (const auto& [key, value] : values_) {
    append_vector(key, out);
    append_vector(*value, out);
  }
  append_u64(queues_.size(), out);
  for (const auto& [key, queue] : queues_) {
    append_vector(key, out);
    append_u64(queue.size(), out);
    for (const SharedValue& value : queue) append_vector(*value, out);
  }
  append_u64(watchers_.size(), out);
  for (const auto& [key, watchers] : watchers_) {
    save_waits(watchers.waits, out);
    save_waits(watchers.barriers, out);
  }
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
    auto& queue = queues_[std::string(key)];
    for (std::uint64_t elements = in.integer(); elements > 0; --elements) {
      const std::string_view value = in.text();
      queue.push_back(make_value(value));
      key_bytes_ += key.size();
      value_bytes_ += value.size();
      ++num_entries_;
    }
  }
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    load_waits(in, false);
    load_waits(in, true);
  }
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    auto& keys = offered_to_[static_cast<ConnectionId>(in.integer())];
    for (std::uint64_t offers = in.integer(); offers > 0; --offers) keys.emplace_back(in.text());
  }
}

void StoreState::save_waits(const WaitList& waits, std::string* out) {
  append_u64(waits.size(), out);
  for (const Wait& wait : waits) {
    append_u64(wait.connection, out);
    append_u64(wait.watched, out);
    append_u64(wait.keys.size(), out);
    for (const std::string& key : wait.keys) append_vector(key, out);
  }
}

void StoreState::load_waits(SnapshotReader& in, bool are_barriers) {
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    Wait wait;
    wait.connection = static_cast<ConnectionId>(in.integer());
    wait.watched = static_cast<std::size_t>(in.integer());
    wait.is_barrier = are_barriers;
    for (std::uint64_t keys = in.integer(); keys > 0; --keys) wait.keys.emplace_back(in.text());
    if (wait.watched >= wait.keys.size()) {
      throw Error(ErrorCode::kProtocol, "what was kept of a store has a wait for nothing");
    }
    add_wait(std::move(wait));
  }
}

}  // namespace ddprun::store
