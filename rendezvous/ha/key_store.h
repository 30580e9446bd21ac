// SPDX-License-Identifier: Apache-2.0
// Keys that several processes share, with etcd's revisions: what a journal is kept in. EtcdClient,
// or what a test puts in its place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::ha {

struct KeyValue {
  std::string key, value;
  std::int64_t create_revision = 0;
  std::int64_t mod_revision = 0;
  std::int64_t lease = 0;  // 0: none

  friend bool operator==(const KeyValue&, const KeyValue&) = default;
};

// Holds while the key was created, and changed last, by these revisions; 0: while there is no such
// key; nullopt: whatever it is.
struct Guard {
  std::string key;
  std::optional<std::int64_t> create_revision = {};
  std::optional<std::int64_t> mod_revision = {};
};

struct KeyChange {
  std::string key;
  std::optional<std::string> value;  // nullopt: it is erased
  std::int64_t lease = 0;            // the key ends with it; 0: none
  bool all_with_prefix = false;      // erases every key that begins with `key`, too
};

struct TxnResult {
  bool held = false;          // the guards did, and all changes were made; else none was
  std::int64_t revision = 0;  // of these changes, or the last one there was
  // If they didn't hold: the key of each guard as it is.
  std::vector<std::optional<KeyValue>> found;
};

class KeyStore {
 public:
  virtual ~KeyStore() = default;

  // All changes, or none, where every guard holds; without changes it says whether they hold. As of
  // now: the cluster's majority is asked. At most 128 guards, 128 changes (no key twice), and about
  // 1.5 MB of keys and values: etcd's own limits.
  // An attempt that was not answered, and is made again, may have changed the guards' keys itself.
  // Then `held` is false, and `found` shows the change (a key with the caller's own lease or
  // value). Such an attempt can also be carried out late, after this call has returned or thrown,
  // for as long as its guards hold. A caller that minds has a guard on a key that each change
  // changes.
  virtual TxnResult change_if(const std::vector<Guard>& guards,
                              const std::vector<KeyChange>& changes) = 0;

  // All keys that begin with it, as they were at one moment not before the call, in their order. In
  // memory at once.
  virtual std::vector<KeyValue> get_prefix(const std::string& prefix) = 0;

  // Values from before `revision` may be forgotten, and their space used again.
  virtual void compact(std::int64_t revision) = 0;

  // Any thread: ends the call that is under way; all later ones throw.
  virtual void cancel() = 0;
};

}  // namespace ddprun::ha
