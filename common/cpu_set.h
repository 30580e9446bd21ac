// SPDX-License-Identifier: Apache-2.0
// A set of logical CPUs, as sched_setaffinity(2) numbers them.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

class CpuSet {
 public:
  static constexpr int kMostCpus = 1024;
  using Words = std::array<std::uint64_t, kMostCpus / 64>;

  CpuSet() = default;
  CpuSet(std::initializer_list<int> cpus) {
    for (const int cpu : cpus) add(cpu);
  }

  // `cpu` must be 0 or more, and less than kMostCpus.
  void add(int cpu) { words_[word(cpu)] |= bit(cpu); }
  void add(const CpuSet& others) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= others.words_[i];
  }
  bool contains(int cpu) const { return (words_[word(cpu)] & bit(cpu)) != 0; }
  bool empty() const { return size() == 0; }
  int size() const {
    int count = 0;
    for (const std::uint64_t each : words_) count += std::popcount(each);
    return count;
  }
  std::vector<int> cpus() const {
    std::vector<int> result;
    for (int cpu = 0; cpu < kMostCpus; ++cpu) {
      if (contains(cpu)) result.push_back(cpu);
    }
    return result;
  }
  CpuSet operator&(const CpuSet& other) const {
    CpuSet result;
    for (std::size_t i = 0; i < words_.size(); ++i) result.words_[i] = words_[i] & other.words_[i];
    return result;
  }
  bool operator==(const CpuSet&) const = default;

  // Returns the words in the form of the kernel's masks, lowest CPU first.
  const Words& words() const { return words_; }

 private:
  static std::size_t word(int cpu) { return static_cast<std::size_t>(cpu) / 64; }
  static std::uint64_t bit(int cpu) { return std::uint64_t{1} << (cpu % 64); }

  Words words_{};
};

// These read and write "0-3,8", as the kernel's lists; a trailing newline is allowed. nullopt: it
// is no list, or names a CPU beyond kMostCpus.
std::optional<CpuSet> parse_cpu_list(std::string_view text);
std::string to_text(const CpuSet& cpus);

}  // namespace ddprun
