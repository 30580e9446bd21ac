// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/rdzv_conf.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "common/suggest.h"
#include "common/trimmed.h"
#include "launcher/options/option_table.h"
#include "launcher/options/parse_value.h"

namespace ddprun::launcher {
namespace {

// Those that ddprun heeds.
constexpr std::array<std::string_view, 12> kHeededKeys = {"is_host",
                                                          "join_timeout",
                                                          "last_call_timeout",
                                                          "keep_alive_timeout",
                                                          "start_timeout",
                                                          "exit_barrier_timeout",
                                                          "replacement_timeout",
                                                          "keep_alive_interval",
                                                          "read_timeout",
                                                          "timeout",
                                                          "store_type",
                                                          "keep_alive_max_attempt"};
// Those that torchrun knows and that mean nothing here (docs/torchrun.md).
constexpr std::array<std::string_view, 5> kIdleKeys = {"close_timeout", "heartbeat_timeout", "rank",
                                                       "protocol", "cas_backoff_max_seconds"};

std::string value_of(const LaunchConfig& config, const std::string& key) {
  const auto found = config.rdzv_conf.find(key);
  return found == config.rdzv_conf.end() ? "" : found->second;
}

void apply_limit(const std::string& key, std::chrono::milliseconds LaunchConfig::*field,
                 LaunchConfig& config, std::vector<std::string>& problems) {
  const std::string value = value_of(config, key);
  if (value.empty()) return;
  const std::string problem = positive_seconds_to(field)(value, config);
  if (!problem.empty()) problems.push_back("--rdzv-conf=" + key + "=" + value + ": " + problem);
}

// torchrun's way to say the keep-alive time: so many pings without an answer.
void apply_keep_alive_attempts(const OptionValues& given, LaunchConfig& config,
                               std::vector<std::string>& problems) {
  constexpr std::chrono::milliseconds kTorchrunsInterval{5'000};
  constexpr int kTorchrunsAttempts = 3, kMostAttempts = 1'000'000;
  const std::string attempts = value_of(config, "keep_alive_max_attempt");
  const auto interval = config.keep_alive_interval;
  if (given.has("keep-alive-timeout") || !value_of(config, "keep_alive_timeout").empty()) return;
  if (attempts.empty() && interval.count() == 0) return;
  const auto count = attempts.empty() ? kTorchrunsAttempts : parse_number(attempts, kMostAttempts);
  if (!count || *count == 0) {
    problems.push_back("--rdzv-conf=keep_alive_max_attempt=" + attempts +
                       ": must be a number of more than 0");
    return;
  }
  config.keep_alive_timeout = *count * (interval.count() > 0 ? interval : kTorchrunsInterval);
}

// Keys that mean nothing are told, not refused: torchrun takes any.
void tell_idle_keys(LaunchConfig& config) {
  for (const auto& [key, value] : config.rdzv_conf) {
    if (std::find(kHeededKeys.begin(), kHeededKeys.end(), key) != kHeededKeys.end()) continue;
    const bool is_known = std::find(kIdleKeys.begin(), kIdleKeys.end(), key) != kIdleKeys.end();
    config.notes.push_back(
        "--rdzv-conf: " + std::string(is_known ? "" : "unknown key ") + "\"" + key +
        "\" means nothing here" +
        (is_known ? "" : did_you_mean(key, {kHeededKeys.begin(), kHeededKeys.end()})));
  }
}

}  // namespace

std::string set_rdzv_conf(const std::string& value, LaunchConfig& config) {
  std::string_view rest = trimmed(value);
  for (bool more = !rest.empty(); more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
    const std::size_t equals = std::min(item.find('='), item.size());
    const std::string key(trimmed(item.substr(0, equals)));
    const std::string_view text = trimmed(item.substr(std::min(equals + 1, item.size())));
    if (key.empty()) return "\"" + std::string(item) + "\" is not KEY=VALUE";
    if (text.empty()) return "\"" + key + "\" has no value; wants KEY=VALUE";
    config.rdzv_conf[key] = text;
  }
  return {};
}

void apply_rdzv_conf(const OptionValues& given, LaunchConfig& config,
                     std::vector<std::string>& problems) {
  if (!given.has("rendezvous-timeout")) {
    apply_limit("join_timeout", &LaunchConfig::rendezvous_timeout, config, problems);
  }
  for (const TimeLimit& limit : time_limits()) {
    if (!given.has(limit.option)) {
      apply_limit(underscored(limit.option), limit.field, config, problems);
    }
  }
  apply_keep_alive_attempts(given, config, problems);
  if (!given.has("rendezvous-timeout")) {
    apply_limit("read_timeout", &LaunchConfig::connect_timeout, config, problems);
    if (!config.rdzv_conf.contains("join_timeout")) {
      apply_limit("timeout", &LaunchConfig::static_timeout, config, problems);
    }
  }
  tell_idle_keys(config);
}

void check_rdzv_conf(const LaunchConfig& config, std::vector<std::string>& problems) {
  for (const auto& [key, value] : config.rdzv_conf) {
    if (key == "is_host" && !parse_switch(value)) {
      problems.push_back("--rdzv-conf=is_host=" + value + ": must be 1 or 0");
    }
    if (key == "store_type" && value != "tcp") {
      problems.push_back("--rdzv-conf=store_type=" + value +
                         ": must be tcp; nodes meet at HOST:PORT, not in a file");
    }
  }
}

}  // namespace ddprun::launcher
