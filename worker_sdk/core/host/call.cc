// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/call.h"

#include "common/operation_facts.h"
#include "common/text.h"

namespace ddprun::host {

std::string describe(const CallHeader& header) {
  if (header.kind == kStartCall) return "start of the communicator";
  const std::string name = kind_name(header.kind);
  if (header.kind == CollectiveKind::kBarrier) return name;
  if (header.kind == CollectiveKind::kAllocate) return concat(name, "(", header.count, " bytes)");
  std::string text = concat(name, "(", ddprun::to_string(header.dtype));
  const bool is_reduction = has_op(header.kind);
  if (is_reduction && header.wire != header.dtype) {
    text += concat(" as ", ddprun::to_string(header.wire));
  }
  text += concat(" × ", header.count);
  if (is_reduction) text += concat(", ", ddprun::to_string(static_cast<ReduceOp>(header.op)));
  if (has_root(header.kind)) text += concat(", root ", header.root);
  if (header.kind == CollectiveKind::kSend) text += concat(" to rank ", header.root);
  if (header.kind == CollectiveKind::kRecv) {
    text += header.root < 0 ? " from any rank" : concat(" from rank ", header.root);
  }
  return text + ")";
}

namespace {

std::string numbered(const CallHeader& header) {
  if (header.kind == kStartCall) return describe(header);
  return concat(describe(header), " #", header.sequence);
}

}  // namespace

std::string different_calls(int rank, const CallHeader& call, int other_rank,
                            const CallHeader& other) {
  return concat("ranks made different calls: rank ", rank, " called ", numbered(call), ", rank ",
                other_rank, " called ", numbered(other),
                "; every rank must make the same calls in the same order");
}

std::string Call::text() const { return numbered(header); }

}  // namespace ddprun::host
