// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/call.h"

#include "common/operation_facts.h"
#include "common/text.h"

namespace ddprun::host {

const char* to_string(CallKind kind) {
  if (kind == CallKind::kStart) return "start of the communicator";
  static_assert(
      static_cast<int>(CallKind::kAllReduce) == static_cast<int>(CollectiveKind::kAllReduce) &&
      static_cast<int>(CallKind::kAllocate) == static_cast<int>(CollectiveKind::kAllocate) &&
      static_cast<int>(CallKind::kReduce) == static_cast<int>(CollectiveKind::kReduce));
  return kind_name(static_cast<CollectiveKind>(kind));
}

std::string describe(const CallHeader& header) {
  const std::string name = to_string(header.kind);
  if (header.kind == CallKind::kBarrier || header.kind == CallKind::kStart) return name;
  if (header.kind == CallKind::kAllocate) return concat(name, "(", header.count, " bytes)");
  std::string text = concat(name, "(", ddprun::to_string(header.dtype));
  const bool is_reduction = has_op(static_cast<CollectiveKind>(header.kind));
  if (is_reduction && header.wire != header.dtype) {
    text += concat(" as ", ddprun::to_string(header.wire));
  }
  text += concat(" × ", header.count);
  if (is_reduction) text += concat(", ", ddprun::to_string(static_cast<ReduceOp>(header.op)));
  if (has_root(static_cast<CollectiveKind>(header.kind))) text += concat(", root ", header.root);
  if (header.kind == CallKind::kSend) text += concat(" to rank ", header.root);
  if (header.kind == CallKind::kRecv) text += concat(" from rank ", header.root);
  return text + ")";
}

namespace {

std::string numbered(const CallHeader& header) {
  if (header.kind == CallKind::kStart) return describe(header);
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
