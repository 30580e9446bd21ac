// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_table.h"

#include <algorithm>
#include <array>

#include "common/env_names.h"
#include "common/environment.h"
#include "common/suggest.h"
#include "common/text.h"
#include "launcher/options/option_values.h"
#include "rendezvous/messages/job_settings.h"

namespace ddprun::launcher {
namespace {

// The keys that ddprun uses.
constexpr char kHeededKeys[] =
    "is_host join_timeout last_call_timeout keep_alive_timeout start_timeout "
    "exit_barrier_timeout replacement_timeout keep_alive_interval read_timeout timeout "
    "store_type keep_alive_max_attempt";
// Keys of torchrun that have no effect here (docs/torchrun.md).
constexpr std::array<std::string_view, 5> kIdleKeys = {"close_timeout", "heartbeat_timeout", "rank",
                                                       "protocol", "cas_backoff_max_seconds"};

std::string value_of(const LaunchConfig& config, const std::string& key) {
  const auto found = config.rdzv_conf.find(key);
  return found == config.rdzv_conf.end() ? "" : found->second;
}

void apply_limit(const std::string& key, TimeField field, LaunchConfig& config,
                 std::vector<std::string>& problems) {
  const std::string value = value_of(config, key);
  if (value.empty()) return;
  const std::string problem = positive_seconds_to(field)(value, config);
  if (!problem.empty()) problems.push_back("--rdzv-conf=" + key + "=" + value + ": " + problem);
}

// torchrun gives the keep-alive time as a number of pings without an answer.
void apply_keep_alive_attempts(const OptionValues& given, LaunchConfig& config,
                               std::vector<std::string>& problems) {
  constexpr std::chrono::milliseconds kTorchrunsInterval{5'000};
  constexpr int kTorchrunsAttempts = 3, kMostAttempts = 1'000'000;
  const std::string attempts = value_of(config, "keep_alive_max_attempt");
  const auto interval = config.keep_alive_interval;
  if (given.has("keep-alive-timeout") || !value_of(config, "keep_alive_timeout").empty()) return;
  if (attempts.empty() && interval.count() == 0) return;
  const auto count = attempts.empty() ? kTorchrunsAttempts : parse_number(attempts, kMostAttempts);
  if (!count || *count == 0) {
    problems.push_back("--rdzv-conf=keep_alive_max_attempt=" + attempts +
                       ": must be a number of more than 0");
    return;
  }
  config.timeouts.keep_alive = *count * (interval.count() > 0 ? interval : kTorchrunsInterval);
}

// Tells the user of keys without effect, and doesn't refuse them: torchrun takes any.
void tell_idle_keys(LaunchConfig& config) {
  const std::vector<std::string> heeded = filled_parts(kHeededKeys, " ");
  for (const auto& [key, value] : config.rdzv_conf) {
    if (std::ranges::find(heeded, key) != heeded.end()) continue;
    const bool is_known = std::find(kIdleKeys.begin(), kIdleKeys.end(), key) != kIdleKeys.end();
    config.notes.push_back("--rdzv-conf: " + std::string(is_known ? "" : "unknown key ") + "\"" +
                           key + "\" is ignored" + (is_known ? "" : did_you_mean(key, heeded)));
  }
}

// Parses "is_host=1,join_timeout=7" into LaunchConfig::rdzv_conf. apply_rdzv_conf() and validate()
// check the keys.
std::string set_rdzv_conf(const std::string& value, LaunchConfig& config) {
  std::string_view rest = trimmed(value);
  // Programs that start torchrun without a shell may write --rdzv-conf='…' with the quotes.
  const bool is_quoted = rest.size() > 1 && rest.front() == rest.back() &&
                         (rest.front() == '\'' || rest.front() == '"');
  if (is_quoted) rest = rest.substr(1, rest.size() - 2);
  for (const char mark : {'\'', '"'}) {
    const bool is_at_an_end = rest.starts_with(mark) || rest.ends_with(mark);
    if (is_at_an_end && std::ranges::count(rest, mark) % 2 != 0) {
      return std::string(rest) + " has a quotation mark without its other one";
    }
  }
  if (rest.empty()) return {};
  for (const std::string_view item : parts_between(rest, ',')) {
    const std::size_t equals = std::min(item.find('='), item.size());
    const std::string key(trimmed(item.substr(0, equals)));
    const std::string_view text = trimmed(item.substr(std::min(equals + 1, item.size())));
    if (key.empty()) return "\"" + std::string(item) + "\" is not KEY=VALUE";
    if (text.empty()) return "\"" + key + "\" has no value; wants KEY=VALUE";
    config.rdzv_conf[key] = text;
  }
  return {};
}

std::string set_store(const std::string& value, LaunchConfig& config) {
  config.wanted_store = membership::store_mode_named(value);
  return config.wanted_store ? "" : "must be direct or proxy";
}

// Also takes "[::1]", as torchrun's help has it.
std::string set_master_addr(const std::string& value, LaunchConfig& config) {
  const bool is_bracketed = value.starts_with('[') && value.ends_with(']');
  const std::string host = is_bracketed ? value.substr(1, value.size() - 2) : value;
  return nonempty_text_to(&LaunchConfig::master_addr)(host, config);
}

std::string set_env(const std::string& values, LaunchConfig& config) {
  std::size_t begin = 0;
  while (begin <= values.size()) {
    const std::size_t end = std::min(values.find('\0', begin), values.size());
    std::string wish = values.substr(begin, end - begin);
    if (std::string why = check_env_wish(wish); !why.empty()) return why;
    config.hosts.env.push_back(std::move(wish));
    begin = end + 1;
  }
  return {};
}

std::string set_fanout(const std::string& value, LaunchConfig& config) {
  constexpr int kMost = 10'000;
  const auto number = parse_number(value, kMost);
  if (!number || *number == 0) return "wants a number from 1 to " + std::to_string(kMost);
  config.hosts.fanout = *number;
  return {};
}

std::string set_timeout(const std::string& value, LaunchConfig& config) {
  const auto time = parse_seconds(value);
  if (!time || time->count() == 0) return "wants a number of seconds, more than 0";
  config.hosts.timeout = *time;
  return {};
}

std::string set_keep_alive(const std::string& value, LaunchConfig& config) {
  // With a shorter time a busy machine's delays look like a cut connection.
  constexpr std::chrono::milliseconds kLeast{200};
  constexpr std::chrono::hours kMost{24};
  const auto time = parse_seconds(value);
  if (!time || *time > kMost || (time->count() > 0 && *time < kLeast)) {
    return "wants a number of seconds, from 0.2 to 86400, or 0 for never";
  }
  config.hosts.keep_alive = *time;
  return {};
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
      {"node-rank", "N", "", "this node's rank; binding with --master-addr", kGroup,
       number_to(&C::node_rank)},
      {"master-addr", "HOST", "", "address of node rank 0", kGroup, set_master_addr, 0, true},
      {"master-port", "PORT", "", "port on node rank 0 (29500)", kGroup,
       number_to(&C::master_port, 65'535), 0, true},
      {"store", "direct|proxy", "",
       "where the workers' store is: at node rank 0, or in the rendezvous, reached through each "
       "node's ddprun; proxy where --token-file or TLS is given, else direct",
       kGroup, set_store},
      {"token-file", "PATH", "",
       "only nodes that have this file's content (16 bytes or more) can join; mode 600", kGroup,
       nonempty_text_to(&C::token_file)},
      {"tls-ca", "PATH", "",
       "speak TLS 1.3 with the rendezvous, whose certificate is of this authority (PEM)", kGroup,
       nonempty_text_to(&C::tls, &security::TlsFiles::ca)},
      {"tls-cert", "PATH", "",
       "this side's certificate (PEM): for a rendezvous that wants one, or to serve it here",
       kGroup, nonempty_text_to(&C::tls, &security::TlsFiles::cert)},
      {"tls-key", "PATH", "", "its key (PEM), mode 600", kGroup,
       nonempty_text_to(&C::tls, &security::TlsFiles::key)},
      {"local-addr", "ADDR", "", "what peers are told to reach this node by", kGroup,
       nonempty_text_to(&C::local_addr)},
      {"topology", "LABEL", "",
       "where this node stands, widest switch first: pod1.rack7; neighbours get adjacent ranks",
       kGroup, text_to(&C::topology)},
  };
}

std::vector<Option> hosts_options() {
  constexpr char kGroup[] = "One shell for all nodes (docs/ssh.md)";
  using C = LaunchConfig;
  using H = HostsOptions;
  std::vector<Option> options = {
      {"hosts", "LIST", "",
       "start a node on each of these hosts over ssh, this one may be among them: "
       "n[01-04]:8,gpu9:4",
       kGroup, nonempty_text_to(&C::hosts, &H::hosts), 'H', true},
      {"hostfile", "FILE", "", "likewise, a host in each line, as \"n1 slots=8\" or \"n1:8\"",
       kGroup, nonempty_text_to(&C::hosts, &H::hostfile), 0, true},
      {"include-hosts", "LIST", "", "only these of them", kGroup,
       nonempty_text_to(&C::hosts, &H::include), 0, true},
      {"exclude-hosts", "LIST", "", "all but these of them", kGroup,
       nonempty_text_to(&C::hosts, &H::exclude), 0, true},
      {"ssh", "COMMAND", "ssh",
       "how to get to a host: 'ssh -p 2222', or with its place 'docker exec -i {host}'", kGroup,
       nonempty_text_to(&C::hosts, &H::ssh)},
      {"remote-ddprun", "PATH", "", "where ddprun is on the hosts (default: where this one is)",
       kGroup, nonempty_text_to(&C::hosts, &H::remote_ddprun)},
      {"env", "NAME[=VALUE]", "",
       "a variable for the workers on the hosts, beside those that they get anyway; -NAME: not "
       "this one; may be given more than once",
       kGroup, set_env, 0, true},
      {"ssh-fanout", "N", "64", "how many hosts are connected to at once", kGroup, set_fanout},
      {"ssh-timeout", "SECONDS", "60", "a host that doesn't answer for so long is given up", kGroup,
       set_timeout},
      {"ssh-keep-alive", "SECONDS", "30",
       "a host of which nothing is heard for so long is lost, and it ends its part; 0: never",
       kGroup, set_keep_alive},
  };
  for (Option& option : options) option.repeats = option.name == "env";
  return options;
}

void apply_rdzv_conf(const OptionValues& given, LaunchConfig& config,
                     std::vector<std::string>& problems) {
  if (!given.has("rendezvous-timeout")) {
    apply_limit("join_timeout", &membership::JobTimeouts::join, config, problems);
  }
  for (const TimeLimit& limit : time_limits()) {
    // torchrun's variable loses to the key, which somebody typed.
    const OptionValue* const value = given.find(limit.option);
    if (value == nullptr || value->origin == env::kExitBarrierTimeout) {
      apply_limit(underscored(limit.option), limit.field, config, problems);
    }
  }
  apply_keep_alive_attempts(given, config, problems);
  if (!given.has("rendezvous-timeout")) {
    apply_limit("read_timeout", &LaunchConfig::connect_timeout, config, problems);
    if (!config.rdzv_conf.contains("join_timeout")) {
      apply_limit("timeout", &LaunchConfig::static_timeout, config, problems);
    }
  }
  tell_idle_keys(config);
}

}  // namespace ddprun::launcher
