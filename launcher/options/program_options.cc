// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_groups.h"

namespace ddprun::launcher {
namespace {

std::string set_preflight_doctor(const std::string& value, LaunchConfig& config) {
  if (value != "off" && value != "fail" && value != "warn") return "must be off, fail or warn";
  config.preflight_doctor = value == "off"    ? DoctorGate::kOff
                            : value == "fail" ? DoctorGate::kFail
                                              : DoctorGate::kWarn;
  return {};
}

}  // namespace

std::vector<Option> program_options() {
  constexpr char kRuns[] = "What runs";
  using C = LaunchConfig;
  return {
      {"preflight", "COMMAND", "",
       "run on this node before it joins; if it fails, the node stays out (docs/preflight.md)",
       kRuns, text_to(&C::preflight)},
      {"preflight-doctor", "off|fail|warn", "off",
       "look at this node with ddprunctl doctor before it joins; from this verdict on it stays out",
       kRuns, set_preflight_doctor},
      {"preflight-timeout", "SECONDS", "60", "a preflight that takes longer has failed", kRuns,
       positive_seconds_to(&C::preflight_timeout)},
      {"module", "", "", "PROGRAM is a Python module: python -u -m PROGRAM", kRuns,
       switch_to(&C::module), 'm'},
      {"no-python", "", "", "execute PROGRAM as it is, never by python", kRuns,
       switch_to(&C::no_python)},
      {"run-path", "", "", "PROGRAM is a Python script, whatever its name", kRuns,
       switch_to(&C::run_path)},
      {"role", "NAME", "default", "ROLE_NAME of the workers", kRuns, text_to(&C::role)},
  };
}

}  // namespace ddprun::launcher
