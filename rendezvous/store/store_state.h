// SPDX-License-Identifier: Apache-2.0
// One c10d key space: keys, queues, and the clients' waits. Pure: no I/O, clock, log or thread.
// Semantics: docs/internals/store.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/error.h"
#include "rendezvous/store/request.h"
#include "rendezvous/store/steady_table.h"

namespace ddprun::store {

// Reads what append_u64 and append_vector wrote. Pure.
class SnapshotReader {
 public:
  explicit SnapshotReader(std::string_view bytes) : bytes_(bytes) {}

  // Each throws Error(kProtocol) if the bytes end too early.
  std::uint64_t integer() {
    const std::string_view field = take(sizeof(std::uint64_t));
    std::uint64_t value = 0;
    std::memcpy(&value, field.data(), sizeof value);
    return value;
  }
  std::string_view text() { return take(integer()); }
  std::string_view rest() { return take(bytes_.size()); }

  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size()) {
      throw Error(ErrorCode::kProtocol, "what was kept of a store ends too early");
    }
    const std::string_view field = bytes_.substr(0, static_cast<std::size_t>(size));
    bytes_.remove_prefix(static_cast<std::size_t>(size));
    return field;
  }

  std::string_view bytes_;
};

// The caller chooses it, and may reuse it after disconnect().
using ConnectionId = std::uint32_t;

// A stored value is shared with the replies that carry it (Reply::body), so that a thousand readers
// of a large value need no copy. Replies must be destroyed before the StoreState.
using SharedValue = std::shared_ptr<const std::string>;

// Bytes for one connection: `bytes`, then `body` if there is one. Replies are sent in order.
struct Reply {
  ConnectionId to = 0;
  std::string bytes;
  SharedValue body;  // may be null
};

// The result of a request.
struct Outcome {
  std::vector<Reply> replies;  // to the sender, and to clients whose WAIT or BARRIER ended
  std::string close_reason;    // not empty: the request was refused; close the sender
  std::size_t work = 0;        // in look-ups of a key: 100 to 500 ns each
};

class StoreState {
 public:
  // `max_total_bytes` limits keys, values (also those that only a reply holds) and waits. Each of
  // these, and each key of a wait, counts 128 bytes more. A request that would exceed it changes
  // nothing and closes its sender. By default only step()'s `growth_refusal` limits.
  explicit StoreState(std::size_t max_total_bytes = kNoLimit) : max_total_bytes_(max_total_bytes) {}
  StoreState(const StoreState&) = delete;
  StoreState& operator=(const StoreState&) = delete;

  // Carries out one request. The reference is valid until the next call. If `growth_refusal` isn't
  // empty, a request that would add anything changes nothing and closes its sender, for this
  // reason. Without max_total_bytes the outcome depends only on the requests and `growth_refusal`.
  const Outcome& step(ConnectionId from, const Request& request,
                      std::string_view growth_refusal = {});

  // Estimates the work of step(), in units of Outcome::work, without num_waits_for(). Costs little
  // itself.
  std::size_t work_of(ConnectionId from, const Request& request) const;

  // Counts the waits for keys that the request may write or delete: step() looks at each of them.
  std::size_t num_waits_for(const Request& request) const;

  // Forgets the connection's waits. The values that it stored stay. The outcome's replies are for
  // other connections: a queue's element that had ended its WAIT, but was not taken, ends the next
  // connection's WAIT.
  const Outcome& disconnect(ConnectionId connection);

  // Makes a value that counts like one that a reply holds.
  SharedValue hold(std::string_view bytes) { return make_value(bytes); }

  // Forgets some of the keys, in less than a millisecond. So a large store is freed in turns with
  // other work: a million keys take 0.3 s. Returns false when none is left.
  bool forget_some();

  // Appends the whole content, for load() of an empty StoreState, which then equals this one.
  void save(std::string* out) const;
  // Throws Error(kProtocol) if the bytes are invalid.
  void load(SnapshotReader& in);

  bool has_value(const HashedKey& key) const { return values_.contains(key); }
  std::size_t num_keys() const { return values_.size(); }
  std::size_t num_waits() const { return waits_.size(); }
  // The bytes of keys and values, queued ones included.
  std::size_t content_bytes() const { return key_bytes_ + value_bytes_; }
  // The bytes that count against max_total_bytes.
  std::size_t total_bytes() const {
    return key_bytes_ + live_value_bytes_ + wait_bytes_ +
           kEntryBytes * (waits_.size() + num_watches_ + num_entries_);
  }

 private:
  // A WAIT or BARRIER that is not over.
  struct Wait;
  using WaitList = std::list<Wait>;
  // The waits for one key, the oldest first.
  using Watchers = std::list<WaitList::iterator>;
  struct Watch {
    SteadyTable<Watchers>::Entry* key = nullptr;  // in watchers_ or barriers_
    Watchers::iterator place;
  };
  struct Wait {
    ConnectionId connection = 0;
    bool is_barrier = false;
    // The keys of a WAIT that don't exist. 0: it waits for a queue's element that was offered to
    // another WAIT.
    std::int64_t num_missing = 0;
    std::vector<Watch> watches;  // one for each key, in the request's order, none twice
  };
  struct OwnWaits {
    std::vector<WaitList::iterator> waits;
    std::size_t num_keys = 0;  // of all waits
  };

  // Counts its bytes in `live_bytes` as long as it has an owner.
  struct CountedValue {
    std::string bytes;
    std::size_t* live_bytes;
    CountedValue(std::string_view text, std::size_t* live) : bytes(text), live_bytes(live) {
      *live_bytes += bytes.size();
    }
    ~CountedValue() { *live_bytes -= bytes.size(); }
  };

  static constexpr std::size_t kNoLimit = ~std::size_t{0};
  static constexpr std::size_t kEntryBytes = 128;
  static constexpr std::size_t kMaxWaitsPerConnection = 16;
  static constexpr std::size_t kMaxWaitedKeys = RequestLimits{}.max_keys_per_request;
  static constexpr std::size_t kCopiedValueBytes = 512;  // A reply copies a value up to this size.

  void compare_set(ConnectionId from, const Request& request);
  void add(ConnectionId from, const Request& request);
  void multi_set(const Request& request);
  void list_keys(ConnectionId from);
  void wait(ConnectionId from, const Request& request);
  void barrier(ConnectionId from, const Request& request);
  void append(const Request& request);
  void get(ConnectionId from, const HashedKey& key);
  void delete_key(ConnectionId from, const HashedKey& key);
  void queue_push(const Request& request);
  void queue_pop(ConnectionId from, const Request& request);

  void collect_freed();
  std::shared_ptr<std::string> make_value(std::string_view bytes);
  // The size of the keys in LIST_KEYS' reply.
  std::size_t list_bytes() const { return key_bytes_ + values_.size() * sizeof(std::uint64_t); }
  bool is_queue(const HashedKey& key) const { return !queues_.empty() && queues_.contains(key); }
  bool exists(const HashedKey& key) const { return values_.contains(key) || is_queue(key); }
  void save_waits(bool are_barriers, std::string* out) const;
  void load_waits(SnapshotReader& in, bool are_barriers);

  // Returns whether a reply holds the value, and a limit counts it: a changed value needs room
  // beside it.
  bool is_held(const std::shared_ptr<std::string>& value) const {
    return max_total_bytes_ != kNoLimit && value.use_count() > 1;
  }
  // Returns false after a refusal: the limit would be exceeded.
  bool fits(std::size_t more_bytes, std::size_t more_entries);
  // Both write a value. put() also ends the waits that this completes. assign() returns whether the
  // key is new.
  void put(const HashedKey& key, std::string_view value);
  bool assign(const HashedKey& key, std::string_view value);
  bool fits_value(const HashedKey& key, std::size_t value_bytes);
  // Reads the number at the key by std::stoll's rules; 0 if absent. Returns false after a refusal:
  // the value is no number.
  bool read_number(const HashedKey& key, std::int64_t* number);

  // Returns false after a refusal: the waits are too many or too large.
  bool may_wait(ConnectionId from, const std::vector<std::string_view>& keys);
  void add_wait(ConnectionId from, const std::vector<std::string_view>& keys, bool is_barrier);
  // Called after a value was written to the key. `is_new` says that no value or queue had this
  // name.
  void key_written(const HashedKey& key, bool is_new);
  void key_disappeared(const HashedKey& key);
  // Adds `more` to the number of missing keys of each of these waits.
  void count_missing(const Watchers& watchers, int more);
  // Ends at most `most` waits whose keys all exist, the oldest first. Returns their connections.
  // `watchers` may be destroyed then.
  std::vector<ConnectionId> end_complete(const Watchers& watchers, std::size_t most);
  void end_barriers(const HashedKey& key);
  void offer_element(const HashedKey& key);
  void offer_again(ConnectionId connection, const Request* next_request);
  void end_wait(WaitList::iterator wait);
  void drop_wait(WaitList::iterator wait);
  void drop_waits_of(ConnectionId connection);

  void reply(ConnectionId to, std::string bytes) {
    outcome_.replies.push_back(Reply{to, std::move(bytes), nullptr});
  }
  void reply_byte(ConnectionId to, char byte) { reply(to, std::string(1, byte)); }
  void reply_integer(ConnectionId to, std::int64_t value);
  void reply_value(ConnectionId to, const SharedValue& value, std::string prefix = {});
  void refuse(std::string reason) { outcome_.close_reason = std::move(reason); }

  const std::size_t max_total_bytes_;
  std::string_view growth_refusal_;  // of the present request

  std::size_t live_value_bytes_ = 0;  // must outlive the values below
  Outcome outcome_;
  SteadyTable<std::shared_ptr<std::string>> values_;
  SteadyTable<std::list<SharedValue>> queues_;           // None is empty.
  WaitList waits_;                                       // The oldest first.
  SteadyTable<Watchers> watchers_, barriers_;            // of WAITs, of BARRIERs; none is empty
  std::unordered_map<ConnectionId, OwnWaits> waits_of_;  // None is empty.
  // The queues of which an element ended this connection's WAIT since its last request.
  std::unordered_map<ConnectionId, std::vector<std::string>> offered_to_;
  std::size_t key_bytes_ = 0;    // of stored and queued values
  std::size_t value_bytes_ = 0;  // stored and queued
  std::size_t wait_bytes_ = 0;
  std::size_t num_entries_ = 0;  // Keys and queued elements.
  std::size_t num_watches_ = 0;  // of all waits
  std::size_t num_requests_ = 0;
  std::unique_ptr<char[]> large_block_;  // see collect_freed()
};

}  // namespace ddprun::store
