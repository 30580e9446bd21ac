// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_table.h"

#include <algorithm>
#include <array>

#include "launcher/options/option_groups.h"

namespace ddprun::launcher {

const std::vector<Option>& option_table() {
  static const std::vector<Option> table = [] {
    std::vector<Option> all;
    for (auto part : {size_options, meeting_options, hosts_options, time_options, progress_options,
                      placement_options, limits_options, program_options, output_options,
                      torchrun_options, other_options}) {
      for (Option& option : part()) all.push_back(std::move(option));
    }
    return all;
  }();
  return table;
}

bool is_torchruns(const Option& option) {
  static constexpr std::array kNames = {"nnodes",
                                        "nproc-per-node",
                                        "rdzv-backend",
                                        "rdzv-endpoint",
                                        "rdzv-id",
                                        "rdzv-conf",
                                        "standalone",
                                        "max-restarts",
                                        "monitor-interval",
                                        "start-method",
                                        "event-log-handler",
                                        "role",
                                        "module",
                                        "no-python",
                                        "run-path",
                                        "log-dir",
                                        "redirects",
                                        "tee",
                                        "local-ranks-filter",
                                        "duplicate-stdout-filters",
                                        "duplicate-stderr-filters",
                                        "node-rank",
                                        "master-addr",
                                        "master-port",
                                        "local-addr",
                                        "logs-specs",
                                        "numa-binding",
                                        "signals-to-handle",
                                        "shutdown-timeout",
                                        "virtual-local-rank",
                                        "log-line-prefix-template",
                                        "print-completion",
                                        "help"};
  return std::find(kNames.begin(), kNames.end(), option.name) != kNames.end();
}

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

const Option* find_option(std::string_view name) {
  const std::string wanted = underscored(std::string(name));
  for (const Option& option : option_table()) {
    if (underscored(option.name) == wanted) return &option;
  }
  return nullptr;
}

}  // namespace ddprun::launcher
