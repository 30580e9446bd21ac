// SPDX-License-Identifier: Apache-2.0
// A hash table for keys from the network. It grows and shrinks in small steps, so no call takes
// long. It has as many buckets as keys: a new key adds one bucket, and an erased one takes one
// away. A new bucket gets its entries from one other bucket. Algorithm: Litwin, "Linear hashing: a
// new tool for file and table addressing" (1980). It is simpler than two tables at a time, shards
// and extendible hashing. There is one array, and its size alone tells the state of growth.
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
#include "rendezvous/store/hashed_key.h"

namespace ddprun::store {

template <typename Value>
class SteadyTable {
 public:
  // An entry doesn't move until it is erased. It doesn't store its hash, to save 16 bytes.
  class Entry {
   public:
    const std::string key;
    Value value{};

   private:
    friend SteadyTable;
    explicit Entry(std::string_view name) : key(name) {}

    Entry* next_ = nullptr;                       // in its bucket
    Entry *before_ = nullptr, *after_ = nullptr;  // in the order of insertion
  };

  SteadyTable() = default;
  SteadyTable(const SteadyTable&) = delete;
  SteadyTable& operator=(const SteadyTable&) = delete;
  ~SteadyTable() {
    while (first_ != nullptr) delete std::exchange(first_, first_->after_);
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Returns the oldest entry; null: the table is empty.
  Entry* first() const { return first_; }
  // Returns null if the key isn't there.
  Entry* find(const HashedKey& key) const {
    return empty() ? nullptr : find(key.text(), key.hash());
  }
  bool contains(const HashedKey& key) const { return find(key) != nullptr; }

  // Returns the key's entry, which is made if there is none, and whether it is new.
  std::pair<Entry*, bool> try_emplace(const HashedKey& key) {
    const std::size_t hash = key.hash();
    if (Entry* const found = empty() ? nullptr : find(key.text(), hash)) return {found, false};
    std::unique_ptr<Entry> made(new Entry(key.text()));
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

  // Calls the function in the order of insertion. Memory has about the same order; a random order
  // would be far slower.
  template <typename Function>
  void for_each(Function function) const {
    for (Entry* entry = first_; entry != nullptr; entry = entry->after_) function(*entry);
  }

  // The number of entries that growing and shrinking have visited until now.
  std::uint64_t num_steps() const { return num_steps_; }

 private:
  static constexpr std::size_t kPartBuckets = 256;  // Even a table of one key has so many.
  using Part = std::array<Entry*, kPartBuckets>;

  Entry*& bucket(std::size_t number) const {
    return (*parts_[number / kPartBuckets])[number % kPartBuckets];
  }

  // Returns the bucket of a hash, in a table that is not empty. The bucket's number is the hash's
  // low bits, as many as the last bucket's number has. It is one bit less if that bucket doesn't
  // exist yet.
  std::size_t place_of(std::size_t hash) const {
    const std::size_t mask = std::bit_ceil(size_) - 1;
    const std::size_t place = hash & mask;
    return place < size_ ? place : place & (mask >> 1);
  }
  // Returns the bucket that has this one's entries until this one exists.
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
    // One part stays in reserve. Else a table at a part's edge would allocate and free it again and
    // again.
    if (parts_.size() * kPartBuckets >= size_ + 2 * kPartBuckets) parts_.pop_back();
  }

  // The buckets, in parts. A single array would have to be moved, or zeroed, all at once.
  std::vector<std::unique_ptr<Part>> parts_;
  std::size_t size_ = 0;                      // entries, and buckets
  Entry *first_ = nullptr, *last_ = nullptr;  // in the order of insertion
  std::uint64_t num_steps_ = 0;
};

}  // namespace ddprun::store
