// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/store_limits.h"

#include <charconv>
#include <optional>
#include <utility>

#include "common/log.h"

namespace ddprun::rendezvous {
namespace {

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  constexpr std::pair<std::string_view, std::uint64_t> kUnits[] = {
      {"", 1},          {"k", 1'000},     {"M", 1'000'000}, {"G", 1'000'000'000},
      {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
  for (const auto& [unit, factor] : kUnits) {
    if (text != unit) continue;
    if (number > std::numeric_limits<std::int64_t>::max() / factor) return std::nullopt;
    return number * factor;
  }
  return std::nullopt;
}

}  // namespace

std::string set_limits(std::string_view text, StoreLimits& limits) {
  const std::pair<std::string_view, std::uint64_t*> known[] = {{"keys", &limits.keys},
                                                               {"bytes", &limits.bytes},
                                                               {"connections", &limits.connections},
                                                               {"requests", &limits.requests}};
  while (true) {
    const std::string_view part = text.substr(0, text.find(','));
    const std::size_t equals = part.find('=');
    const auto* found = std::ranges::find(known, part.substr(0, equals),
                                          [](const auto& each) { return each.first; });
    if (equals == part.npos || found == std::end(known)) {
      return concat("\"", part, "\" is not keys=N, bytes=N, connections=N or requests=N");
    }
    const auto number = number_of(part.substr(equals + 1));
    if (!number) {
      return concat("\"", part, "\": wants a number, which may end in k, M, G, KiB, MiB or GiB");
    }
    *found->second = *number;
    if (part.size() == text.size()) return {};
    text.remove_prefix(part.size() + 1);
  }
}

}  // namespace ddprun::rendezvous
