// SPDX-License-Identifier: Apache-2.0
// Lines about peers that come again and again, as a pair's other ddprund does, all day: each is
// said once, until another one is said of that address. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace ddprun::rendezvous {

class RepeatedLines {
 public:
  // Whether it is to be said: the last one of `address` was another.
  bool is_new(const std::string& address, const std::string& line) {
    if (last_.size() >= kMost && !last_.contains(address)) last_.clear();
    std::string& last = last_[address];
    if (last == line) return false;
    last = line;
    return true;
  }
  // All is well there: what is said next is new.
  void forget(const std::string& address) { last_.erase(address); }

 private:
  static constexpr std::size_t kMost = 64;  // addresses: strangers can't fill the memory
  std::map<std::string, std::string> last_;
};

}  // namespace ddprun::rendezvous
