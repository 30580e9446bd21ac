// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/node_steps.h"

#include "common/error.h"
#include "common/log.h"

namespace ddprun::host {

void NodeSteps::enter(const Call& call, const std::optional<Arena::Place>& place) {
  PublishedCall& own = group_.own_control().calls[parity(call)];
  own.header = call.header;
  own.buffer_id = place ? place->buffer_id : -1;
  own.offset = place ? place->offset : 0;
  group_.publish(&RankControl::entered, call.header.sequence);
  group_.wait_for_all(&RankControl::entered, call.header.sequence, call);
  for (int local = 0; local < group_.num_local(); ++local) {
    const CallHeader& other = published(call, local).header;
    if (other == call.header) continue;
    throw Error(ErrorCode::kProtocol, different_calls(group_.topology().rank(), call.header,
                                                      group_.rank_of(local), other));
  }
}

}  // namespace ddprun::host
