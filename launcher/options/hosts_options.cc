// SPDX-License-Identifier: Apache-2.0
#include "common/forwarded_environment.h"
#include "launcher/launch_config.h"
#include "launcher/options/option_groups.h"
#include "launcher/options/parse_value.h"

namespace ddprun::launcher {
namespace {

// One that "--hosts=$HOSTS" with an unset variable doesn't turn into a job of one node.
OptionSetter name_to(std::string HostsOptions::*field) {
  return [field](const std::string& value, LaunchConfig& config) -> std::string {
    if (value.empty()) return "wants a value, got nothing";
    config.hosts.*field = value;
    return {};
  };
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
  // Below this a busy machine's own delays look like a cut line.
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

std::vector<Option> hosts_options() {
  constexpr char kGroup[] = "One shell for all nodes (docs/ssh.md)";
  using H = HostsOptions;
  std::vector<Option> options = {
      {"hosts", "LIST", "",
       "start a node on each of these hosts over ssh, this one may be among them: "
       "n[01-04]:8,gpu9:4",
       kGroup, name_to(&H::hosts), 'H', true},
      {"hostfile", "FILE", "", "likewise, a host in each line, as \"n1 slots=8\" or \"n1:8\"",
       kGroup, name_to(&H::hostfile), 0, true},
      {"include-hosts", "LIST", "", "only these of them", kGroup, name_to(&H::include), 0, true},
      {"exclude-hosts", "LIST", "", "all but these of them", kGroup, name_to(&H::exclude), 0, true},
      {"ssh", "COMMAND", "ssh",
       "how to get to a host: 'ssh -p 2222', or with its place 'docker exec -i {host}'", kGroup,
       name_to(&H::ssh)},
      {"remote-ddprun", "PATH", "", "where ddprun is on the hosts (default: where this one is)",
       kGroup, name_to(&H::remote_ddprun)},
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

}  // namespace ddprun::launcher
