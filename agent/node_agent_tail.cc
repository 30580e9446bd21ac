// SPDX-License-Identifier: Apache-2.0
// What a rank of this node wrote last, for who looks at it on the status page.
#include <utility>

#include "agent/node_agent.h"
#include "common/log.h"
#include "common/process_facts.h"

namespace ddprun::agent {

static_assert(OutputTail::kNumLines == membership::kMaxTailLines);

void NodeAgent::read_tail(const membership::agent_action::ReadTail& wanted) {
  const auto answer = [this, request = wanted.request](LastOutput last) {
    membership::Tail tail{request, std::move(last.lines), std::move(last.note)};
    handle(membership::agent_event::TailRead{std::move(tail)});
  };
  if (!options_.workers.output.is_watched) {
    return answer({{},
                   concat("switched off for this job: ddprun on ", host_name(),
                          " runs with --watch-output=off")});
  }
  const bool is_here =
      workers_ && wanted.round == round_ && workers_->look(wanted.global_rank, answer);
  if (is_here) return;
  answer({{},
          concat("rank ", wanted.global_rank, " of round ", wanted.round,
                 " is not, or not yet, on ", host_name())});
}

}  // namespace ddprun::agent
