// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/call.h"

#include "common/log.h"

namespace ddprun::host {

const char* to_string(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce:
      return "all_reduce";
    case CallKind::kBroadcast:
      return "broadcast";
    case CallKind::kAllGather:
      return "all_gather";
    case CallKind::kReduceScatter:
      return "reduce_scatter";
    case CallKind::kBarrier:
      return "barrier";
    case CallKind::kAllocate:
      return "allocate";
    case CallKind::kSend:
      return "send";
    case CallKind::kRecv:
      return "recv";
    case CallKind::kStart:
      return "start of the communicator";
  }
  return "unknown";
}

std::string describe(const CallHeader& header) {
  const std::string name = to_string(header.kind);
  switch (header.kind) {
    case CallKind::kBarrier:
    case CallKind::kStart:
      return name;
    case CallKind::kAllocate:
      return concat(name, "(", header.count, " bytes)");
    case CallKind::kAllReduce:
    case CallKind::kReduceScatter:
      return concat(name, "(", ddprun::to_string(header.dtype),
                    header.wire == header.dtype ? "" : " as ",
                    header.wire == header.dtype ? "" : ddprun::to_string(header.wire), " × ",
                    header.count, ", ", ddprun::to_string(static_cast<ReduceOp>(header.op)), ")");
    case CallKind::kBroadcast:
      return concat(name, "(", ddprun::to_string(header.dtype), " × ", header.count, ", root ",
                    header.root, ")");
    case CallKind::kSend:
      return concat(name, "(", ddprun::to_string(header.dtype), " × ", header.count, " to rank ",
                    header.root, ")");
    case CallKind::kRecv:
      return concat(name, "(", ddprun::to_string(header.dtype), " × ", header.count, " from rank ",
                    header.root, ")");
    case CallKind::kAllGather:
      break;
  }
  return concat(name, "(", ddprun::to_string(header.dtype), " × ", header.count, ")");
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
