// SPDX-License-Identifier: Apache-2.0
// Keys that several processes share, with etcd's revisions. A shared journal is kept there. It is
// an EtcdClient or a test's class.
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
  std::int64_t lease = 0;  // 0: no lease

  friend bool operator==(const KeyValue&, const KeyValue&) = default;
};

// Holds if the key was created, and last changed, by these revisions. 0: holds if there is no such
// key. nullopt: any revision.
struct Guard {
  std::string key;
  std::optional<std::int64_t> create_revision = {};
  std::optional<std::int64_t> mod_revision = {};
};

struct KeyChange {
  std::string key;
  std::optional<std::string> value;  // nullopt: it is erased
  std::int64_t lease = 0;            // the key is erased at its end; 0: none
  bool all_with_prefix = false;      // erases every key that begins with `key`, too
};

struct TxnResult {
  bool held = false;          // the guards held, and all changes were made; else none was
  std::int64_t revision = 0;  // of these changes, or else the last revision
  // If they didn't hold: each guard's key as it is now.
  std::vector<std::optional<KeyValue>> found;
};

class KeyStore {
 public:
  virtual ~KeyStore() = default;

  // Makes all changes if every guard holds, else none. Without changes it only tells whether they
  // hold. The cluster's majority is asked, so the answer is up to date. At most 128 guards, 128
  // changes (no key twice), and about 1.5 MB of keys and values: etcd's own limits. An attempt
  // without an answer, which is then repeated, may have changed the guards' keys itself. Then
  // `held` is false, and `found` shows the change (a key with the caller's own lease or value).
  // Such an attempt can also take effect late, after this call has returned or thrown, as long as
  // its guards hold. To prevent that, a caller guards a key that each change changes.
  virtual TxnResult change_if(const std::vector<Guard>& guards,
                              const std::vector<KeyChange>& changes) = 0;

  // Returns all keys that begin with `prefix`, in order, as they were at one moment during the
  // call. All of them are in memory at once.
  virtual std::vector<KeyValue> get_prefix(const std::string& prefix) = 0;

  // Allows the store to forget values from before `revision`, and to reuse their space.
  virtual void compact(std::int64_t revision) = 0;

  // Any thread. Ends the call under way; all later calls throw.
  virtual void cancel() = 0;
};

}  // namespace ddprun::ha
