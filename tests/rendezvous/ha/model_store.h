// SPDX-License-Identifier: Apache-2.0
// etcd's content as a map, and ways to it that lose, repeat and delay requests.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "rendezvous/ha/key_store.h"

namespace ddprun::ha::testing {

using Random = std::mt19937_64;

class ModelKeys {
 public:
  // Does what etcd does. Throws std::logic_error for a request that etcd would refuse.
  TxnResult apply(const std::vector<Guard>& guards, const std::vector<KeyChange>& changes) {
    check(changes);
    TxnResult result;
    result.held = std::all_of(guards.begin(), guards.end(), [&](const Guard& guard) {
      const auto key = keys.find(guard.key);
      const bool is_there = key != keys.end();
      return guard.create_revision.value_or(is_there ? key->second.create_revision : 0) ==
                 (is_there ? key->second.create_revision : 0) &&
             guard.mod_revision.value_or(is_there ? key->second.mod_revision : 0) ==
                 (is_there ? key->second.mod_revision : 0);
    });
    if (!result.held) {
      for (const Guard& guard : guards) {
        const auto key = keys.find(guard.key);
        result.found.emplace_back();
        if (key != keys.end()) result.found.back() = key->second;
      }
    } else if (!changes.empty()) {
      ++revision;
      for (const KeyChange& change : changes) make(change);
    }
    result.revision = revision;
    return result;
  }

  std::vector<KeyValue> with_prefix(const std::string& prefix) const {
    std::vector<KeyValue> found;
    for (auto key = keys.lower_bound(prefix); key != keys.end(); ++key) {
      if (!key->first.starts_with(prefix)) break;
      found.push_back(key->second);
    }
    return found;
  }

  // Becomes the leader. Returns the create_revision of its key.
  std::int64_t lead(const std::string& leader_key) {
    apply({}, {{leader_key, std::nullopt}});
    return apply({}, {{leader_key, "leader"}}).revision;
  }

  struct Attempt {
    std::vector<Guard> guards;
    std::vector<KeyChange> changes;
  };

  std::map<std::string, KeyValue> keys;
  std::int64_t revision = 1;
  std::vector<Attempt> delayed;  // requests that their senders have given up

 private:
  static void check(const std::vector<KeyChange>& changes) {
    if (changes.size() > 128) throw std::logic_error("too many operations");
    std::size_t num_bytes = 0;
    std::set<std::string> puts;
    for (const KeyChange& change : changes) {
      num_bytes += change.key.size() + change.value.value_or("").size();
      if (!puts.insert(change.key).second) throw std::logic_error("duplicate key");
    }
    for (const KeyChange& change : changes) {
      if (!change.all_with_prefix) continue;
      const auto next = std::next(puts.find(change.key));
      if (next != puts.end() && next->starts_with(change.key))
        throw std::logic_error("duplicate key");
    }
    if (num_bytes > std::size_t{3} << 19) throw std::logic_error("request is too large");
  }

  void make(const KeyChange& change) {
    if (change.value) {
      KeyValue& key = keys[change.key];
      if (key.key.empty()) key.create_revision = revision;
      key.key = change.key, key.value = *change.value;
      key.mod_revision = revision, key.lease = change.lease;
      return;
    }
    if (!change.all_with_prefix) {
      keys.erase(change.key);
      return;
    }
    for (const KeyValue& key : with_prefix(change.key)) keys.erase(key.key);
  }
};

// One process' way to the keys.
class FaultyStore : public KeyStore {
 public:
  explicit FaultyStore(ModelKeys& keys, Random& random, double fault_rate)
      : keys_(keys), random_(random), fault_rate_(fault_rate) {}

  TxnResult change_if(const std::vector<Guard>& guards,
                      const std::vector<KeyChange>& changes) override {
    for (int attempt = 0; attempt < 3; ++attempt) {
      if (before_each) before_each();
      deliver_some();
      if (!chance(fault_rate_)) return keys_.apply(guards, changes);
      switch (random_() % 3) {
        case 0:
          break;  // the request is lost
        case 1:
          keys_.apply(guards, changes);  // the answer is lost
          break;
        default:
          keys_.delayed.push_back({guards, changes});
      }
    }
    throw Error(ErrorCode::kUnavailable, "no answer");
  }

  std::vector<KeyValue> get_prefix(const std::string& prefix) override {
    deliver_some();
    return keys_.with_prefix(prefix);
  }
  void compact(std::int64_t) override {}
  void cancel() override {}

  std::function<void()> before_each;

 private:
  bool chance(double rate) { return std::uniform_real_distribution<>()(random_) < rate; }

  void deliver_some() {
    while (!keys_.delayed.empty() && chance(0.3)) {
      const auto which =
          keys_.delayed.begin() + static_cast<std::ptrdiff_t>(random_() % keys_.delayed.size());
      const ModelKeys::Attempt attempt = std::move(*which);
      keys_.delayed.erase(which);
      keys_.apply(attempt.guards, attempt.changes);
    }
  }

  ModelKeys& keys_;
  Random& random_;
  const double fault_rate_;
};

}  // namespace ddprun::ha::testing
