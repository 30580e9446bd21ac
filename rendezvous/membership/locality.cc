// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/locality.h"

#include <cstring>
#include <string>
#include <utility>

namespace ddprun::membership {
namespace {

// "a.b.c" → "a", and "b.c" stays.
std::string_view take_level(std::string_view& label) {
  const std::size_t dot = label.find('.');
  const std::string_view level = label.substr(0, dot);
  label.remove_prefix(dot == std::string_view::npos ? label.size() : dot + 1);
  return level;
}

// Level by level, so that "pod1.rack2" and "pod1.rack10" are compared by their racks alone.
int compare_labels(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    const std::string level_a(take_level(a)), level_b(take_level(b));
    if (const int order = ::strverscmp(level_a.c_str(), level_b.c_str())) return order;
  }
  return static_cast<int>(!a.empty()) - static_cast<int>(!b.empty());
}

}  // namespace

int shared_levels(std::string_view a, std::string_view b) {
  int shared = 0;
  while (!a.empty() && !b.empty() && take_level(a) == take_level(b)) ++shared;
  return shared;
}

bool stands_before(const Join& a, const Join& b) {
  if (a.topology.empty() != b.topology.empty()) return !a.topology.empty();
  if (const int order = compare_labels(a.topology, b.topology)) return order < 0;
  return ::strverscmp(a.host.c_str(), b.host.c_str()) < 0;
}

}  // namespace ddprun::membership
