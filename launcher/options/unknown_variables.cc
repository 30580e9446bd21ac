// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/unknown_variables.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "common/env_names.h"
#include "common/suggest.h"
#include "launcher/options/option_table.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

// DDPRUN_<name>s that are no option's.
constexpr std::array<std::string_view, 18> kOthers = {
    env::kTrueLocalRank,     env::kRound,         env::kNodeAddr,
    env::kMasterNodeAddr,    env::kAgentSocket,   env::kTerminalColumns,
    env::kNcclLibrary,       env::kCudartLibrary, env::kFlightRecorderSize,
    env::kFlightRecorderDir, env::kDebug,         env::kNvmlLibrary,
    env::kRdzvEndpoint,      env::kRdzvId,        env::kConfig,
    env::kUnderChannel,      env::kSubmittedAs,   env::kDoctorThresholds,
};

}  // namespace

std::vector<std::string> unknown_variables(const Environment& environment) {
  const std::string prefix = env::kOwnPrefix;
  std::vector<std::string> variables;
  std::vector<std::string> lines;
  for (const Option& option : option_table()) {
    if (!option.only_typed) variables.push_back(variable_of("", option));
  }
  for (const auto& [name, value] : environment) {
    if (!name.starts_with(prefix) || value.empty()) continue;
    if (std::find(kOthers.begin(), kOthers.end(), name) != kOthers.end()) continue;
    const std::string rest = name.substr(prefix.size());
    if (std::find(variables.begin(), variables.end(), rest) != variables.end()) continue;
    const std::vector<Option>& table = option_table();
    const auto typed = std::find_if(table.begin(), table.end(), [&](const Option& option) {
      return variable_of("", option) == rest;
    });
    if (typed != table.end()) {
      lines.push_back(name + " means nothing: --" + typed->name + " is for the command line");
    } else if (const std::string similar = did_you_mean(rest, variables); !similar.empty()) {
      const std::size_t at = similar.find("mean ") + 5;
      lines.push_back(name + " means nothing" + similar.substr(0, at) + prefix +
                      similar.substr(at));
    }
  }
  return lines;
}

}  // namespace ddprun::launcher
