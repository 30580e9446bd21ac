// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/steady_table.h"

#include <map>
#include <random>
#include <string>

#include "tests/support/catch.h"

using namespace ddprun::store;

namespace {

std::string numbered(std::size_t number) { return "/" + std::to_string(number); }

std::map<std::string, int> content_of(const SteadyTable<int>& table) {
  std::map<std::string, int> content;
  table.for_each([&](const auto& entry) { CHECK(content.emplace(entry.key, entry.value).second); });
  return content;
}

}  // namespace

TEST_CASE("SteadyTable: an empty one has nothing") {
  SteadyTable<int> table;
  CHECK(table.empty());
  CHECK_FALSE(table.contains(""));
  CHECK(content_of(table).empty());
}

TEST_CASE("SteadyTable: has what a std::map has, while it grows and shrinks") {
  std::mt19937 random(1);
  SteadyTable<int> table;
  std::map<std::string, int> model;
  // Between these it goes up and down, over the edges of its parts and the powers of two.
  for (const std::size_t aim : {3, 0, 300, 1, 1100, 200, 5000, 700, 0, 2100}) {
    while (model.size() != aim) {
      const std::string key = numbered(random() % 10'000);
      const auto found = model.lower_bound(key);
      const bool wants_more = model.size() < aim;
      if (found == model.end() || (random() % 4 == 0) != wants_more) {
        const auto [entry, is_new] = table.try_emplace(key);
        REQUIRE(entry->key == key);
        REQUIRE(is_new == !model.contains(key));
        REQUIRE(entry->value == (is_new ? 0 : model[key]));
        entry->value = model[key] = static_cast<int>(random());
      } else {
        REQUIRE(table.contains(key) == (found->first == key));
        auto* const entry = table.find(found->first);
        REQUIRE(entry->value == found->second);
        table.erase(entry);
        model.erase(found);
      }
      REQUIRE(table.size() == model.size());
    }
    CHECK(content_of(table) == model);
  }
}

TEST_CASE("HashedKey: another key in its place has a hash of its own") {
  HashedKey key = "first";
  CHECK(key.hash() == ddprun::KeyedHash()("first"));
  key = "second";
  CHECK(key.hash() == ddprun::KeyedHash()("second"));
}

TEST_CASE("SteadyTable: an entry stays where it is") {
  SteadyTable<int> table;
  const auto* const first = table.try_emplace("first").first;
  for (std::size_t i = 0; i < 5'000; ++i) table.try_emplace(numbered(i));
  CHECK(table.find("first") == first);
  for (std::size_t i = 0; i < 5'000; ++i) table.erase(table.find(numbered(i)));
  CHECK(table.find("first") == first);
}
