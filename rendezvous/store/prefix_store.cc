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

std::vector<std::string> PrefixStore::list_keys() {
  std::vector<std::string> mine;
  for (const std::string& key : base_->list_keys()) {
    if (key.starts_with(prefix_)) mine.push_back(key.substr(prefix_.size()));
  }
  return mine;
}

void PrefixStore::multi_set(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::vector<std::pair<std::string, std::string>> joined_entries;
  joined_entries.reserve(entries.size());
  for (const auto& [key, value] : entries) joined_entries.emplace_back(joined(key), value);
  base_->multi_set(joined_entries);
}

void PrefixStore::barrier(std::string_view key, std::int64_t world_size) {
  const std::string num_members = std::string(key) + "/num_members";
  const std::string last_member = std::string(key) + "/last_member";
  if (add(num_members, 1) == world_size) set(last_member, "1");
  wait({last_member});
}

}  // namespace ddprun::store
