// SPDX-License-Identifier: Apache-2.0
// A view of another store that puts "<prefix>/" in front of every key, as PyTorch's PrefixStore
// does.
#pragma once

#include <memory>
#include <string>

#include "rendezvous/store/store.h"

namespace ddprun::store {

// In nested views the outer prefix is nearer to the key: PrefixStore("outer", PrefixStore("inner",
// s)) has its key "k" at "inner/outer/k" of s. The base's errors, deadlines and one-call-at-a-time
// rule apply. The timeout is the base's, too.
class PrefixStore final : public Store {
 public:
  // `base` is shared with its maker and with other views of it, as in PyTorch.
  PrefixStore(std::string prefix, std::shared_ptr<Store> base)
      : prefix_(std::move(prefix) + "/"), base_(std::move(base)) {}

  std::unique_ptr<Store> clone() override {
    return std::make_unique<PrefixStore>(prefix_.substr(0, prefix_.size() - 1), base_->clone());
  }
  std::chrono::milliseconds timeout() const override { return base_->timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { base_->set_timeout(timeout); }
  void set(std::string_view key, std::string_view value) override {
    base_->set(joined(key), value);
  }
  std::string get(std::string_view key) override { return base_->get(joined(key)); }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return base_->add(joined(key), delta);
  }
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    return base_->compare_set(joined(key), expected, desired);
  }
  bool check(const std::vector<std::string>& keys) override { return base_->check(joined(keys)); }
  void wait(const std::vector<std::string>& keys) override { base_->wait(joined(keys)); }
  bool delete_key(std::string_view key) override { return base_->delete_key(joined(key)); }
  // Counts all of the base's keys, not this view's alone, as PyTorch does.
  std::int64_t num_keys() override { return base_->num_keys(); }
  // Lists this view's keys, without the prefix.
  std::vector<std::string> list_keys() override {
    std::vector<std::string> mine;
    for (const std::string& key : base_->list_keys()) {
      if (key.starts_with(prefix_)) mine.push_back(key.substr(prefix_.size()));
    }
    return mine;
  }
  void append(std::string_view key, std::string_view value) override {
    base_->append(joined(key), value);
  }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys) override {
    return base_->multi_get(joined(keys));
  }
  void multi_set(const std::vector<std::pair<std::string, std::string>>& entries) override {
    std::vector<std::pair<std::string, std::string>> joined_entries;
    joined_entries.reserve(entries.size());
    for (const auto& [key, value] : entries) joined_entries.emplace_back(joined(key), value);
    base_->multi_set(joined_entries);
  }
  void queue_push(std::string_view key, std::string_view value) override {
    base_->queue_push(joined(key), value);
  }
  std::string queue_pop(std::string_view key) override { return base_->queue_pop(joined(key)); }
  std::optional<std::string> try_queue_pop(std::string_view key) override {
    return base_->try_queue_pop(joined(key));
  }
  std::int64_t queue_len(std::string_view key) override { return base_->queue_len(joined(key)); }
  // Uses the keys "<key>/num_members" and "<key>/last_member" of this view. PyTorch's PrefixStore
  // does the same, so its workers can take part.
  void barrier(std::string_view key, std::int64_t world_size) override {
    const std::string num_members = std::string(key) + "/num_members";
    const std::string last_member = std::string(key) + "/last_member";
    if (add(num_members, 1) == world_size) set(last_member, "1");
    wait({last_member});
  }

 private:
  std::string joined(std::string_view key) const {
    std::string text = prefix_;
    text.append(key);
    return text;
  }
  std::vector<std::string> joined(const std::vector<std::string>& keys) const {
    std::vector<std::string> texts;
    texts.reserve(keys.size());
    for (const std::string& key : keys) texts.push_back(joined(key));
    return texts;
  }

  const std::string prefix_;  // Ends in "/".
  const std::shared_ptr<Store> base_;
};

}  // namespace ddprun::store
