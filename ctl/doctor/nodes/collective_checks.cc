// SPDX-License-Identifier: Apache-2.0
// The collectives of all ranks. Pure.
#include <algorithm>
#include <set>

#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"
#include "ctl/doctor/nodes/nodes_facts.h"

namespace ddprun::doctor {
namespace {

Outcome judge_backend(const NodesFacts& nodes, const Thresholds& limits,
                      const std::string& backend) {
  if (!nodes.no_collectives.empty()) return unknown("not tried: " + one_line(nodes.no_collectives));
  std::vector<std::string> failed;
  std::set<int> concerned;
  double slowest = 0, num_bytes = 0;
  for (const RankCollective& each : nodes.collectives) {
    if (each.backend != backend) continue;
    if (!each.failure.empty()) {
      const std::string where = each.node_rank < 0 ? "" : " on " + nodes.name(each.node_rank);
      failed.push_back(concat("rank ", each.global_rank, where, ": ", one_line(each.failure)));
      if (each.node_rank >= 0) concerned.insert(each.node_rank);
    }
    slowest = std::max(slowest, each.seconds);
    num_bytes = std::max(num_bytes, each.num_bytes);
  }
  Outcome outcome;
  const double least = limits.at("all_reduce.least") * 1e6;
  outcome.wanted = "the right sum on every rank" +
                   (least > 0 ? ", at least " + rate_text(least) : std::string());
  if (!failed.empty()) {
    outcome.verdict = Verdict::kFail;
    outcome.nodes.assign(concerned.begin(), concerned.end());
    outcome.seen = list_text(failed, 4);
    outcome.fix = backend == "nccl" ? "NCCL_DEBUG=INFO says what NCCL does; docs/nccl.md"
                                    : "what reachability and bandwidth say; the ranks' output";
    return outcome;
  }
  if (slowest <= 0) return skipped("not every rank has a GPU and NCCL");
  // What each rank sends and receives, as nccl-tests count it.
  const double ranks = nodes.world_size;
  const double rate = num_bytes * 8 * 2 * (ranks - 1) / ranks / slowest;
  outcome.seen = concat(size_text(num_bytes), " over ", nodes.world_size,
                        " ranks: ", rate_text(rate), " bus bandwidth");
  if (rate >= least) return outcome;
  outcome.verdict = Verdict::kWarn;
  outcome.fix = backend == "nccl" ? "NCCL_DEBUG=INFO says which adapters it takes"
                                  : "what bandwidth says; a faster network";
  return outcome;
}

Outcome judge_all_reduce(const NodesFacts& nodes, const Thresholds& limits) {
  if (nodes.world_size == 1) return skipped("there is one rank");
  return judge_backend(nodes, limits, "host");
}

Outcome judge_all_reduce_nccl(const NodesFacts& nodes, const Thresholds& limits) {
  if (nodes.world_size == 1) return skipped("there is one rank");
  return judge_backend(nodes, limits, "nccl");
}

}  // namespace

std::vector<Check> collective_checks() {
  static constexpr char kGroup[] = "collectives";
  Check host{"all_reduce",
             kGroup,
             "ddprun-check on every rank: the host communicator",
             "this is what training does in every step",
             nullptr,
             judge_all_reduce};
  Check nccl{"all_reduce_nccl",
             kGroup,
             "likewise: NCCL, where every rank has a GPU",
             "this is what training on GPUs does in every step",
             nullptr,
             judge_all_reduce_nccl};
  host.is_of_all_ranks = nccl.is_of_all_ranks = true;
  return {host, nccl};
}

}  // namespace ddprun::doctor
