// SPDX-License-Identifier: Apache-2.0
#include "launcher/standing/gang_command.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "agent/output/line_prefix.h"
#include "common/log.h"

namespace ddprun::launcher {
namespace {

// systemd.exec(5): of the service alone.
constexpr std::array<std::string_view, 9> kOfService = {
    "INVOCATION_ID",           "JOURNAL_STREAM",    "SYSTEMD_EXEC_PID",
    "STATE_DIRECTORY",         "RUNTIME_DIRECTORY", "CACHE_DIRECTORY",
    "CONFIGURATION_DIRECTORY", "LOGS_DIRECTORY",    "CREDENTIALS_DIRECTORY"};

bool is_of_agent(const std::string& name) {
  return name.starts_with("DDPRUN_") || name.starts_with("PET_") ||
         std::ranges::find(kOfService, name) != kOfService.end();
}

}  // namespace

std::vector<std::string> gang_arguments(const gangs::StartPart& start,
                                        const StandingOptions& options,
                                        const std::string& program) {
  std::vector<std::string> arguments = {program,
                                        "--rdzv-endpoint=" + options.endpoint_text,
                                        "--rdzv-conf=is_host=0",
                                        "--rdzv-id=" + start.gang,
                                        "--nnodes=" + start.nodes,
                                        "--nproc-per-node=" + start.workers};
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) arguments.push_back(concat(flag, "=", value));
  };
  // Who reads all nodes' output has to tell the ranks apart.
  if (start.nodes != "1") add("--log-line-prefix-template", agent::LinePrefix::kRankTemplate);
  add("--token-file", options.token_file);
  add("--tls-ca", options.tls.ca);
  add("--tls-cert", options.tls.cert);
  add("--tls-key", options.tls.key);
  arguments.insert(arguments.end(), start.arguments.begin(), start.arguments.end());
  return arguments;
}

std::vector<std::string> gang_environment(const gangs::StartPart& start, Environment own) {
  std::erase_if(own, [](const auto& variable) { return is_of_agent(variable.first); });
  for (const std::string& variable : start.environment) {
    const std::size_t equals = variable.find('=');
    own[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  return to_strings(own);
}

}  // namespace ddprun::launcher
