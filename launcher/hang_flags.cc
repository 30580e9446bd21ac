// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang_flags.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "common/suggest.h"
#include "rendezvous/membership/job_settings.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using Limit = std::optional<milliseconds> agent::HangLimits::*;

constexpr double kMaxHangSeconds = 86'400 * 30;  // 30 days: beyond it nobody waits for a verdict

constexpr std::array<std::pair<std::string_view, Limit>, 6> kLimits = {{
    {"startup", &agent::HangLimits::startup},
    {"first", &agent::HangLimits::first},
    {"step", &agent::HangLimits::step},
    {"checkpoint", &agent::HangLimits::checkpoint},
    {"teardown", &agent::HangLimits::teardown},
    {"foreign", &agent::HangLimits::foreign},
}};

// nullopt: not a time of more than 0 and at most 30 days.
std::optional<milliseconds> parse_time(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc()) return std::nullopt;
  const std::string_view unit(stop, static_cast<std::size_t>(end - stop));
  double seconds = 1;
  if (unit == "m") {
    seconds = 60;
  } else if (unit == "h") {
    seconds = 3600;
  } else if (!unit.empty() && unit != "s") {
    return std::nullopt;
  }
  const double total = value * seconds;
  if (!(total >= 0.001 && total <= kMaxHangSeconds)) return std::nullopt;
  return milliseconds(static_cast<std::int64_t>(total * 1000));
}

}  // namespace

std::optional<membership::HangAction> parse_hang_action(std::string_view text) {
  if (text.empty()) return membership::HangAction::kDefault;
  return membership::hang_action_named(text);
}

std::string parse_hang_timeout(std::string_view text, agent::HangLimits& limits) {
  std::string_view rest = text;
  do {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
    const std::size_t equals = item.find('=');
    const std::string_view key = equals == std::string_view::npos ? "step" : item.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? item : item.substr(equals + 1);
    Limit limit = nullptr;
    std::vector<std::string> names;
    for (const auto& [name, member] : kLimits) {
      if (name == key) limit = member;
      names.emplace_back(name);
    }
    if (limit == nullptr) {
      return "unknown key \"" + std::string(key) + "\"" + did_you_mean(std::string(key), names);
    }
    limits.*limit = parse_time(value);
    if (!(limits.*limit)) {
      return "\"" + std::string(value) +
             "\" is no time of more than 0 and at most 30 days: 30s, 10m, 2h";
    }
  } while (!rest.empty());
  return {};
}

}  // namespace ddprun::launcher
