// SPDX-License-Identifier: Apache-2.0
#include "agent/worker_arguments.h"

#include "common/template_text.h"

namespace ddprun::agent {

std::vector<std::string> worker_arguments(const WorkerCommand& command, int local_rank) {
  const auto dollars =
      command.dollars_are_doubled ? DoubleDollar::kBecomesOne : DoubleDollar::kStays;
  std::vector<std::string> result = command.argv;
  for (std::size_t i = 1; i < result.size(); ++i) {
    result[i] =
        safe_substitute(command.argv[i], {{"local_rank", std::to_string(local_rank)}}, dollars);
  }
  return result;
}

}  // namespace ddprun::agent
