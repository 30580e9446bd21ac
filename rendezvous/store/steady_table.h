// SPDX-License-Identifier: Apache-2.0
// A hash table for keys from the network that never stands still while it grows or shrinks. It has
// as many buckets as keys: a new key adds one bucket, and an erased one takes one away. A new
// bucket gets its entries from one other bucket. Algorithm: Litwin, "Linear hashing: a new tool for
// file and table addressing" (1980). It is plainer than two tables at a time, shards and extendible
// hashing. There is one array, and its size alone says how far it has grown.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/keyed_hash.h"

namespace ddprun::store {

template <typename Value>
class SteadyTable {
 public:
  // An entry stays where it is until it is erased. It keeps no hash: that would take 16 bytes.
  class Entry {
   public:
    const std::string key;
    Value value{};

   private:
    friend SteadyTable;
    explicit Entry(std::string_view name) : key(name) {}

    Entry* next_ = nullptr;                       // in its bucket
    Entry *before_ = nullptr, *after_ = nullptr;  // of all
  };

  SteadyTable() = default;
  SteadyTable(const SteadyTable&) = delete;
  SteadyTable& operator=(const SteadyTable&) = delete;
  ~SteadyTable() {
    while (first_ != nullptr) delete std::exchange(first_, first_->after_);
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // The oldest one. Null: there is none.
  Entry* first() const { return first_; }
  // Null: it isn't there.
  Entry* find(std::string_view key) const {
    return empty() ? nullptr : find(key, KeyedHash()(key));
  }
  bool contains(std::string_view key) const { return find(key) != nullptr; }

  // The entry of that key, made if there is none. True: it is new.
  std::pair<Entry*, bool> try_emplace(std::string_view key) {
    const std::size_t hash = KeyedHash()(key);
    if (Entry* const found = empty() ? nullptr : find(key, hash)) return {found, false};
    std::unique_ptr<Entry> made(new Entry(key));
    add_bucket();
    Entry* const entry = made.release();
    entry->next_ = std::exchange(bucket(place_of(hash)), entry);
    entry->before_ = std::exchange(last_, entry);
    (entry->before_ != nullptr ? entry->before_->after_ : first_) = entry;
    return {entry, true};
  }

  void erase(Entry* entry) {
    Entry** link = &bucket(place_of(KeyedHash()(entry->key)));
    while (*link != entry) link = &(*link)->next_;
    *link = entry->next_;
    (entry->before_ != nullptr ? entry->before_->after_ : first_) = entry->after_;
    (entry->after_ != nullptr ? entry->after_->before_ : last_) = entry->before_;
    delete entry;
    remove_bucket();
  }

  // In the order in which they came: memory has about the same, and random places are far slower.
  template <typename Function>
  void for_each(Function function) const {
    for (Entry* entry = first_; entry != nullptr; entry = entry->after_) function(*entry);
  }

  // The number of entries that growing and shrinking have looked at until now.
  std::uint64_t num_steps() const { return num_steps_; }

 private:
  static constexpr std::size_t kPartBuckets = 256;  // A table of one key has so many, too.
  using Part = std::array<Entry*, kPartBuckets>;

  Entry*& bucket(std::size_t number) const {
    return (*parts_[number / kPartBuckets])[number % kPartBuckets];
  }

  // The bucket of a hash: its low bits, as many as the last bucket's number has, or one less if
  // that bucket isn't there yet. The table is not empty.
  std::size_t place_of(std::size_t hash) const {
    const std::size_t mask = std::bit_ceil(size_) - 1;
    const std::size_t place = hash & mask;
    return place < size_ ? place : place & (mask >> 1);
  }
  // The bucket that has this one's entries while this one isn't there.
  static std::size_t parent_of(std::size_t number) { return number - std::bit_floor(number); }

  Entry* find(std::string_view key, std::size_t hash) const {
    Entry* entry = bucket(place_of(hash));
    while (entry != nullptr && entry->key != key) entry = entry->next_;
    return entry;
  }

  void add_bucket() {
    if (size_ == parts_.size() * kPartBuckets) parts_.push_back(std::make_unique<Part>());
    const std::size_t added = size_++;
    if (added == 0) return;
    Entry** link = &bucket(parent_of(added));
    Entry*& first = bucket(added);
    while (Entry* const entry = *link) {
      ++num_steps_;
      if (place_of(KeyedHash()(entry->key)) == added) {
        *link = std::exchange(entry->next_, first);
        first = entry;
      } else {
        link = &entry->next_;
      }
    }
  }

  void remove_bucket() {
    const std::size_t last = --size_;
    if (last > 0) {
      Entry** link = &bucket(parent_of(last));
      for (; *link != nullptr; link = &(*link)->next_) ++num_steps_;
      *link = std::exchange(bucket(last), nullptr);
    }
    // One part stays in reserve, or a table at a part's edge would get and free it again and again.
    if (parts_.size() * kPartBuckets >= size_ + 2 * kPartBuckets) parts_.pop_back();
  }

  // The array of buckets. One array of all would have to be moved, or zeroed, at once.
  std::vector<std::unique_ptr<Part>> parts_;
  std::size_t size_ = 0;                      // entries, and buckets
  Entry *first_ = nullptr, *last_ = nullptr;  // of all, in the order in which they came
  std::uint64_t num_steps_ = 0;
};

}  // namespace ddprun::store
