// SPDX-License-Identifier: Apache-2.0
// Writes a job's settings as text and as JSON, and compares them. Each setting has one row for all
// of these (each_setting in the source). A new setting is a member of JobSettings, a row there and
// an option in launcher/options. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/messages/json_fields.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

const char* to_string(HangAction action);  // "default", "restart", "report", "off"
const char* to_string(StoreMode mode);     // "direct", "proxy"
const char* to_string(Recovery recovery);  // "restart", "inplace"
std::optional<HangAction> hang_action_named(std::string_view name);
std::optional<StoreMode> store_mode_named(std::string_view name);
std::optional<Recovery> recovery_named(std::string_view name);

std::string nnodes_text(const JobSettings& settings);  // "4", "2:4"

inline bool store_is_at_endpoint(const JobSettings& settings) {
  return settings.rdzv_backend == kStaticBackend && settings.store == StoreMode::kDirect;
}
inline bool store_is_at_node(const JobSettings& settings) {
  return settings.rdzv_backend != kStaticBackend && settings.store == StoreMode::kDirect;
}

// A setting that limits restarts. A dry run shows it, and a job file has its key under [restarts].
struct RestartLimit {
  std::string flag;          // without leading dashes: "max-restarts"
  std::optional<int> value;  // nullopt: no limit
};
std::vector<RestartLimit> restart_limits(const JobSettings& settings);

// A setting that is absent, since an older agent doesn't know it, has its default.
void each_json(const JobSettings& settings, JsonWriter& fields);
void each_json(JobSettings& settings, JsonReader& fields);
inline boost::json::object to_object(const JobSettings& settings) { return json_of(settings); }

// Names the first setting whose values differ, e.g. "--max-restarts", "3", "0".
struct SettingDifference {
  std::string flag, here, there;
};
std::optional<SettingDifference> first_difference(const JobSettings& here,
                                                  const JobSettings& there);

}  // namespace ddprun::membership
