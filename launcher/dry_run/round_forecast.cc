// SPDX-License-Identifier: Apache-2.0
#include "launcher/dry_run/round_forecast.h"

#include <utility>

#include "rendezvous/membership/formation.h"
#include "rendezvous/membership/state.h"

namespace ddprun::launcher {
namespace {

constexpr char kOwnAddr[] = "<this node's address>";
constexpr char kMasterAddr[] = "<node rank 0's address>";

membership::JobState job_state(const RoundKnowledge& knowledge) {
  membership::JobState job;
  job.settings.rdzv_backend = knowledge.is_static ? membership::kStaticBackend : "c10d";
  if (knowledge.is_proxied) job.settings.store = membership::StoreMode::kProxy;
  for (std::size_t rank = 0; rank < knowledge.nodes.size(); ++rank) {
    membership::Node& node = job.nodes.add(rank);
    node.join.num_workers = knowledge.nodes[rank].num_workers;
    node.join.role = knowledge.role;
    node.join.store_port = knowledge.store_port;
    node.facts.peer_addr = knowledge.nodes[rank].addr;
  }
  return job;
}

void say_unknown_addresses(const RoundKnowledge& knowledge, membership::StartRound& round) {
  if (round.node_addr.empty()) round.node_addr = kOwnAddr;
  if (round.master_node_addr.empty()) round.master_node_addr = kMasterAddr;
  if (knowledge.is_proxied) return;
  if (knowledge.is_static) {
    round.master_addr = knowledge.endpoint.host;
    round.master_port = knowledge.endpoint.port;
  } else {
    round.master_addr = round.master_node_addr;
  }
}

}  // namespace

std::vector<membership::StartRound> forecast_rounds(const RoundKnowledge& knowledge) {
  const membership::JobState job = job_state(knowledge);
  std::vector<membership::NodeId> order;
  for (const auto& [id, node] : job.nodes) order.push_back(id);
  std::vector<membership::StartRound> rounds;
  for (auto& [id, round] : start_messages(job, order, 1)) {
    say_unknown_addresses(knowledge, round);
    rounds.push_back(std::move(round));
  }
  return rounds;
}

std::vector<OtherRound> other_rounds(const RoundKnowledge& knowledge,
                                     const membership::StartRound& round) {
  std::vector<OtherRound> others;
  if (!knowledge.ranks) {
    ++others.emplace_back(OtherRound{round, "<by the node's place>"}).round.node_rank;
  }
  if (!knowledge.ranks || !knowledge.num_workers) {
    OtherRound& other = others.emplace_back(OtherRound{round, "<by the node's place>"});
    ++other.round.first_global_rank;
    ++other.round.first_role_rank;
  }
  if (!knowledge.num_nodes) {
    ++others.emplace_back(OtherRound{round, "<as many as meet>"}).round.num_nodes;
  }
  if (!knowledge.num_nodes || !knowledge.num_workers) {
    OtherRound& other = others.emplace_back(OtherRound{round, "<as many as meet>"});
    ++other.round.world_size;
    ++other.round.role_world_size;
  }
  if (round.master_port == 0) {
    others.emplace_back(OtherRound{round, "<a free port>"}).round.master_port = 1;
  }
  OtherRound& moved = others.emplace_back(OtherRound{round, ""});
  for (std::string* addr :
       {&moved.round.node_addr, &moved.round.master_node_addr, &moved.round.master_addr}) {
    if (addr->starts_with('<')) *addr += '.';
  }
  return others;
}

}  // namespace ddprun::launcher
