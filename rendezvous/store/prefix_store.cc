// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/prefix_store.h"

namespace ddprun::store {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> base)
    : prefix_(std::move(prefix) + "/"), base_(std::move(base)) {}

std::string PrefixStore::joined(std::string_view key) const {
  std::string text = prefix_;
  text.append(key);
  return text;
}

std::vector<std::string> PrefixStore::joined(const std::vector<std::string>& keys) const {
  std::vector<std::string> texts;
  texts.reserve(keys.size());
  for (const std::string& key : keys) texts.push_back(joined(key));
  return texts;
}

std::unique_ptr<Store> PrefixStore::clone() {
  return std::make_unique<PrefixStore>(prefix_.substr(0, prefix_.size() - 1), base_->clone());
}

void PrefixStore::set(std::string_view key, std::string_view value) {
  base_->set(joined(key), value);
}

std::string PrefixStore::get(std::string_view key) { return base_->get(joined(key)); }

std::int64_t PrefixStore::add(std::string_view key, std::int64_t delta) {
  return base_->add(joined(key), delta);
}

std::string PrefixStore::compare_set(std::string_view key, std::string_view expected,
                                     std::string_view desired) {
  return base_->compare_set(joined(key), expected, desired);
}

bool PrefixStore::check(const std::vector<std::string>& keys) { return base_->check(joined(keys)); }

void PrefixStore::wait(const std::vector<std::string>& keys) { base_->wait(joined(keys)); }

bool PrefixStore::delete_key(std::string_view key) { return base_->delete_key(joined(key)); }

std::vector<std::string> PrefixStore::list_keys() {
  std::vector<std::string> mine;
  for (const std::string& key : base_->list_keys()) {
    if (key.starts_with(prefix_)) mine.push_back(key.substr(prefix_.size()));
  }
  return mine;
}

void PrefixStore::append(std::string_view key, std::string_view value) {
  base_->append(joined(key), value);
}

std::vector<std::string> PrefixStore::multi_get(const std::vector<std::string>& keys) {
  return base_->multi_get(joined(keys));
}

void PrefixStore::multi_set(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::vector<std::pair<std::string, std::string>> joined_entries;
  joined_entries.reserve(entries.size());
  for (const auto& [key, value] : entries) joined_entries.emplace_back(joined(key), value);
  base_->multi_set(joined_entries);
}

void PrefixStore::queue_push(std::string_view key, std::string_view value) {
  base_->queue_push(joined(key), value);
}

std::string PrefixStore::queue_pop(std::string_view key) { return base_->queue_pop(joined(key)); }

std::optional<std::string> PrefixStore::try_queue_pop(std::string_view key) {
  return base_->try_queue_pop(joined(key));
}

std::int64_t PrefixStore::queue_len(std::string_view key) { return base_->queue_len(joined(key)); }

void PrefixStore::barrier(std::string_view key, std::int64_t world_size) {
  const std::string num_members = std::string(key) + "/num_members";
  const std::string last_member = std::string(key) + "/last_member";
  if (add(num_members, 1) == world_size) set(last_member, "1");
  wait({last_member});
}

}  // namespace ddprun::store
