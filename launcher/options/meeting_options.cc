// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_groups.h"

#include "launcher/options/parse_value.h"
#include "launcher/options/rdzv_conf.h"
#include "rendezvous/membership/job_settings.h"

namespace ddprun::launcher {
namespace {

std::string set_node_rank(const std::string& value, LaunchConfig& config) {
  constexpr int kMost = 1'000'000;
  config.node_rank = parse_number(value, kMost);
  return config.node_rank ? "" : "wants a number from 0 to " + std::to_string(kMost);
}

std::string set_store(const std::string& value, LaunchConfig& config) {
  config.wanted_store = membership::store_mode_named(value);
  return config.wanted_store ? "" : "must be direct or proxy";
}

std::string set_master_port(const std::string& value, LaunchConfig& config) {
  constexpr int kMost = 65'535;
  const auto port = parse_number(value, kMost);
  if (!port) return "wants a number from 0 to " + std::to_string(kMost);
  config.master_port = static_cast<std::uint16_t>(*port);
  return {};
}

// "[::1]", as torchrun's help asks for it, too.
std::string set_master_addr(const std::string& value, LaunchConfig& config) {
  const bool is_bracketed = value.starts_with('[') && value.ends_with(']');
  const std::string host = is_bracketed ? value.substr(1, value.size() - 2) : value;
  return nonempty_text_to(&LaunchConfig::master_addr)(host, config);
}

OptionSetter tls_file_to(std::string security::TlsFiles::*field) {
  return [field](const std::string& value, LaunchConfig& config) -> std::string {
    if (value.empty()) return "wants a value, got nothing";
    config.tls.*field = value;
    return {};
  };
}

}  // namespace

std::vector<Option> meeting_options() {
  constexpr char kGroup[] = "Where the nodes meet";
  using C = LaunchConfig;
  return {
      {"standalone", "", "", "one node, any free port, nothing to configure", kGroup,
       switch_to(&C::standalone)},
      {"rdzv-endpoint", "HOST[:PORT],…", "",
       "where the nodes meet; the node that has HOST's address serves it (port 29400). Several, "
       "with commas between: a ddprund runs at each, one of which leads",
       kGroup, nonempty_text_to(&C::rdzv_endpoint), 0, true},
      {"standing-agents", "", "",
       "typed once: the standing agents (ddprun-agent) of the ddprund there start the job", kGroup,
       switch_to(&C::standing_agents)},
      {"rdzv-id", "ID", "", "name of the job, the same on every node", kGroup,
       nonempty_text_to(&C::rdzv_id), 0, true},
      {"rdzv-backend", "c10d|static", "", "how ranks are given out", kGroup,
       text_to(&C::wanted_backend)},
      {"rdzv-conf", "K=V,…", "",
       "is_host (0 or 1); in seconds: join_timeout (600), last_call_timeout (30), "
       "keep_alive_timeout (5), start_timeout (300), exit_barrier_timeout (3600)",
       kGroup, set_rdzv_conf},
      {"node-rank", "N", "", "this node's rank; binding with --master-addr", kGroup, set_node_rank},
      {"master-addr", "HOST", "", "address of node rank 0", kGroup, set_master_addr, 0, true},
      {"master-port", "PORT", "", "port on node rank 0 (29500)", kGroup, set_master_port, 0, true},
      {"store", "direct|proxy", "",
       "where the workers' store is: at node rank 0, or in the rendezvous, reached through each "
       "node's ddprun; proxy where --token-file or TLS is given, else direct",
       kGroup, set_store},
      {"token-file", "PATH", "",
       "only nodes that have this file's content (16 bytes or more) can join; mode 600", kGroup,
       nonempty_text_to(&C::token_file)},
      {"tls-ca", "PATH", "",
       "speak TLS 1.3 with the rendezvous, whose certificate is of this authority (PEM)", kGroup,
       tls_file_to(&security::TlsFiles::ca)},
      {"tls-cert", "PATH", "",
       "this side's certificate (PEM): for a rendezvous that wants one, or to serve it here",
       kGroup, tls_file_to(&security::TlsFiles::cert)},
      {"tls-key", "PATH", "", "its key (PEM), mode 600", kGroup,
       tls_file_to(&security::TlsFiles::key)},
      {"local-addr", "ADDR", "", "what peers are told to reach this node by", kGroup,
       nonempty_text_to(&C::local_addr)},
      {"topology", "LABEL", "",
       "where this node stands, widest switch first: pod1.rack7; neighbours get adjacent ranks",
       kGroup, text_to(&C::topology)},
  };
}

}  // namespace ddprun::launcher
