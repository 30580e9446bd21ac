// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/fleet_plan.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "common/death_limits.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/fd_text.h"
#include "common/process_facts.h"
#include "common/random_id.h"
#include "common/regular_file.h"
#include "common/shell_words.h"
#include "common/signal_names.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "launcher/endpoint_claim.h"
#include "launcher/hosts/channel_agent.h"
#include "launcher/hosts/host_list.h"
#include "launcher/options/option_values.h"
#include "launcher/prepare.h"
#include "rendezvous/store_server/file_limit.h"

namespace ddprun::launcher {
namespace {

using std::chrono::seconds;

// These options are set anew for each node, or are for the launcher only.
constexpr std::string_view kNotForwarded =
    " hosts hostfile include-hosts exclude-hosts ssh remote-ddprun env ssh-fanout ssh-timeout "
    "ssh-keep-alive nnodes node-rank nproc-per-node rdzv-id rdzv-conf rdzv-endpoint config "
    "standalone local-addr dry-run json standing-agents ";

[[noreturn]] void refuse(const std::string& problem) {
  throw Error(ErrorCode::kInvalidArgument, problem);
}

// The file may be a pipe: --hostfile=<(command).
std::string read_host_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) refuse("--hostfile=" + path + ": " + opening_trouble(path, errno));
  ReadText read = read_text(fd.get(), kMostHostFileBytes + 1);  // more is refused by the parser
  if (read.error != 0) refuse("--hostfile=" + path + ": " + errno_text(read.error));
  return std::move(read.text);
}

std::string_view first_label(std::string_view name) { return name.substr(0, name.find('.')); }

// Whether the name is this machine's. Looks no name up.
bool is_this_machine(const std::string& name) {
  if (name.find('@') != std::string::npos) return false;  // it may be another user
  const std::string own = host_name();
  if (name == "localhost" || name == own || is_own_address(name).value_or(false)) return true;
  const bool has_domain = name.find('.') != std::string::npos;
  const bool own_has_domain = own.find('.') != std::string::npos;
  return has_domain != own_has_domain && first_label(name) == first_label(own);
}

class FleetPlanner {
 public:
  FleetPlanner(const CommandLine& line, const Environment& environment)
      : config_(line.config),
        options_(line.config.hosts),
        environment_(environment),
        given_(line.values.of_any_machine()) {}

  FleetPlan plan() {
    HostList list = options_.hosts.empty()
                        ? parse_host_file(read_host_file(options_.hostfile), options_.hostfile)
                        : parse_hosts(options_.hosts, "--hosts");
    plan_.notes = std::move(list.notes);
    hosts_ = std::move(list.hosts);
    filter_hosts(hosts_, options_.include, options_.exclude);
    read_sizes();
    check_slots();
    say_how();
    say_what();
    for (Host& host : hosts_) add_node(host);
    return std::move(plan_);
  }

 private:
  bool is_given(const char* option) const { return given_.contains(option); }

  void read_sizes() {
    const int num_hosts = static_cast<int>(hosts_.size());
    min_nodes_ = config_.min_nodes;
    max_nodes_ = config_.max_nodes;
    if (!is_given("nnodes")) min_nodes_ = max_nodes_ = num_hosts - config_.spares;
    if (max_nodes_ < 1) {
      refuse(
          concat("--spares=", config_.spares, ": leaves no node, there are ", num_hosts, " hosts"));
    }
    if (num_hosts < min_nodes_ || num_hosts > max_nodes_ + config_.spares) {
      refuse(concat("--nnodes=", config_.min_nodes,
                    min_nodes_ == max_nodes_ ? "" : concat(":", max_nodes_), ": there are ",
                    num_hosts, " hosts; leave --nnodes out",
                    num_hosts > max_nodes_ ? ", or give --spares" : ""));
    }
  }

  void check_slots() const {
    const bool has_nproc = is_given("nproc-per-node");
    const auto has_slots = [](const Host& host) { return host.slots != 0; };
    const auto with = std::find_if(hosts_.begin(), hosts_.end(), has_slots);
    const auto without = std::find_if_not(hosts_.begin(), hosts_.end(), has_slots);
    if (!has_nproc && with != hosts_.end() && without != hosts_.end()) {
      refuse(concat(without->where, ": ", without->name, " has no slots, but ", with->name,
                    " has (", with->where, "): say it for all, or give --nproc-per-node"));
    }
    const auto wanted = has_nproc ? parse_number(config_.nproc_per_node) : std::nullopt;
    for (const Host& host : hosts_) {
      if (wanted && host.slots != 0 && *wanted > host.slots) {
        refuse(concat(host.where, ": ", host.name, " has ", host.slots,
                      " slots, but --nproc-per-node=", *wanted));
      }
    }
  }

  // Reads where the nodes meet, if the user says so. Then ddprun's usual rules apply on each node.
  void read_endpoint() {
    std::string& endpoint = plan_.fleet.endpoint = config_.rdzv_endpoint;
    if (endpoint.empty() && !config_.master_addr.empty()) {
      endpoint = config_.master_addr;
      return;  // --master-addr is forwarded
    }
    for (const char* name : {env::kRdzvEndpoint, env::kPetRdzvEndpoint}) {
      if (endpoint.empty()) endpoint = find_variable(environment_, name).value_or("");
    }
    if (!endpoint.empty()) plan_.job.arguments.push_back("--rdzv-endpoint=" + endpoint);
  }

  void say_how() {
    const auto words = split_words(options_.ssh);
    if (!words) refuse("--ssh=" + options_.ssh + ": is no command line");
    plan_.ssh = *words;
    plan_.remote_program = options_.remote_ddprun.empty() ? own_program_ : options_.remote_ddprun;
    FleetOptions& fleet = plan_.fleet;
    fleet.min_nodes = min_nodes_;
    fleet.fanout = options_.fanout;
    if (const auto& handled = config_.signals_to_handle.numbers; !handled.empty()) {
      fleet.stop_signals = handled;
    }
    fleet.reach_timeout = options_.timeout;
    fleet.stop_timeout = config_.timeouts.shutdown + kHostsGoneMargin;
    fleet.verdict_patience += config_.timeouts.replacement;
  }

  // Sets what all nodes share; job_at() adds the rest.
  void say_what() {
    channel::Job& job = plan_.job;
    job.directory = working_directory(environment_);
    if (job.directory.empty()) {
      refuse("the working directory is gone: start ddprun in one that is there");
    }
    job.stop_signal = plan_.fleet.stop_signals.front();
    job.stop_time = std::chrono::ceil<seconds>(config_.timeouts.shutdown + kDdprunGoneMargin);
    for (const auto& [name, value] : given_) {
      if (is_forwarded_option(name)) job.arguments.push_back("--" + name + "=" + value);
    }
    job.arguments.push_back(concat("--nnodes=", min_nodes_));
    if (min_nodes_ != max_nodes_) job.arguments.back() += concat(":", max_nodes_);
    const std::string drawn = config_.dry_run ? kDrawnAtStart : random_id();
    job.arguments.push_back("--rdzv-id=" +
                            (config_.rdzv_id.empty() ? "ssh-" + drawn : config_.rdzv_id));
    read_endpoint();
    job.environment = forwarded_environment(environment_, options_.env);
    plan_.num_ranked = max_nodes_;
    if (is_given("rdzv-conf")) plan_.rdzv_conf = given_.at("rdzv-conf");
    plan_.program = config_.program_args;
    plan_.program.insert(plan_.program.begin(), config_.program);
  }

  void add_node(Host& host) {
    const bool is_by_slots = !is_given("nproc-per-node") && host.slots != 0;
    plan_.nproc_per_node.push_back(is_by_slots ? std::to_string(host.slots)
                                               : config_.nproc_per_node);
    host.is_here = is_this_machine(host.name);
    plan_.commands.push_back(host.is_here
                                 ? std::vector<std::string>{own_program_, kFromChannel}
                                 : agent_command(plan_.ssh, host.name, plan_.remote_program));
  }

  const LaunchConfig& config_;
  const HostsOptions& options_;
  const Environment& environment_;
  // Options by name, without those that are only for one machine.
  const std::map<std::string, std::string> given_;
  const std::string own_program_ = own_folder() + "/ddprun";
  int min_nodes_ = 1;
  int max_nodes_ = 1;
  FleetPlan plan_;
  std::vector<Host>& hosts_ = plan_.fleet.nodes;
};

constexpr std::string_view kHostPlace = "{host}";

// BatchMode: ssh never asks. The ServerAlive options find a dead connection after a minute. The
// user's forwardings are switched off, since a port can be forwarded only once.
constexpr char kOptions[] =
    "-T -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "
    "-o ClearAllForwardings=yes --";

// Messages of ssh about errors that another try doesn't change.
constexpr std::array<std::string_view, 7> kLasting = {"Permission denied",
                                                      "Host key verification failed",
                                                      "Bad configuration option",
                                                      "Bad owner or permissions",
                                                      "Too many authentication failures",
                                                      "no matching",
                                                      "unknown option"};

// Returns the last line that isn't blank.
std::string last_line(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  constexpr std::size_t kMostBytes = 300;
  const std::size_t end = text.find_last_not_of(kBlank);
  if (end == std::string_view::npos) return {};
  text = text.substr(0, end + 1);
  const std::size_t begin = text.find_last_of("\r\n");
  if (begin != std::string_view::npos) text.remove_prefix(begin + 1);
  return one_line(text.substr(0, kMostBytes));
}

}  // namespace

FleetPlan plan_fleet(const CommandLine& line, const Environment& environment) {
  store::raise_file_limit();
  return FleetPlanner(line, environment).plan();
}

channel::Job job_at(const FleetPlan& plan, int node, const std::string& place, bool serves) {
  channel::Job job = plan.job;
  std::vector<std::string>& arguments = job.arguments;
  std::string conf = plan.rdzv_conf;
  if (plan.fleet.endpoint.empty()) {  // else the user gave the place
    if (serves) {
      job.serve_at = place;
    } else {
      arguments.insert(arguments.begin(), "--rdzv-endpoint=" + place);
    }
    // No other node may serve, even if the address is its own.
    conf += concat(conf.empty() ? "" : ",", "is_host=", serves ? 1 : 0);
  }
  arguments.push_back("--nproc-per-node=" + plan.nproc_per_node[node]);
  // Node ranks are in the order of the list. Spares have no rank yet.
  if (node < plan.num_ranked) arguments.push_back(concat("--node-rank=", node));
  if (!conf.empty()) arguments.push_back("--rdzv-conf=" + conf);
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), plan.program.begin(), plan.program.end());
  return job;
}

bool is_forwarded_option(const std::string& name) {
  return kNotForwarded.find(" " + name + " ") == std::string_view::npos;
}

std::string working_directory(const Environment& environment) {
  struct stat here {
  }, told{};
  const auto pwd = find_variable(environment, "PWD");
  if (pwd && pwd->starts_with('/') && ::stat(".", &here) == 0 && ::stat(pwd->c_str(), &told) == 0 &&
      here.st_dev == told.st_dev && here.st_ino == told.st_ino) {
    return *pwd;
  }
  std::array<char, PATH_MAX> buffer;
  return ::getcwd(buffer.data(), buffer.size()) != nullptr ? buffer.data() : "";
}

std::vector<std::string> agent_command(const std::vector<std::string>& ssh, const std::string& host,
                                       const std::string& program) {
  std::vector<std::string> argv = ssh;
  bool has_place = false;
  for (std::string& word : argv) {
    for (std::size_t at = 0; (at = word.find(kHostPlace, at)) != std::string::npos;) {
      has_place = true;
      word.replace(at, kHostPlace.size(), host);
      at += host.size();
    }
  }
  if (has_place) {
    argv.insert(argv.end(), {program, kFromChannel});
  } else {
    const auto options = split_words(kOptions);
    argv.insert(argv.end(), options->begin(), options->end());
    argv.insert(argv.end(), {host, shell_quoted(program) + " " + kFromChannel});
  }
  return argv;
}

CommandFailure command_failure(int wait_status, const std::string& said,
                               const std::vector<std::string>& ssh, const std::string& program) {
  constexpr int kTransport = 255;
  CommandFailure failure;
  const std::string name = ssh.front().substr(ssh.front().rfind('/') + 1);
  const std::string words = last_line(said);
  const std::string quoted = words.empty() ? "" : ": " + words;
  if (WIFSIGNALED(wait_status)) {
    failure.text = name + " was ended by " + signal_name(WTERMSIG(wait_status)) + quoted;
    return failure;
  }
  const int code = WEXITSTATUS(wait_status);
  failure.text = name + " ended with " + std::to_string(code) + quoted;
  if (code == kTransport) {
    const bool lasts = std::any_of(kLasting.begin(), kLasting.end(), [&](std::string_view text) {
      return said.find(text) != std::string::npos;
    });
    if (lasts) failure.code = ExitCode::kUsage;
    return failure;
  }
  failure.code = ExitCode::kUsage;
  if (code == 0) {
    failure.text += "; does it hand on standard input, as `docker exec -i` does?";
  } else if (code == kExitNotFound || code == kExitNotExecutable) {
    failure.text =
        "no ddprun at " + program + " there" + quoted + "; where is it? (--remote-ddprun=PATH)";
  } else if (said.find(kFromChannel) != std::string::npos) {
    failure.text = program + " there is another version of ddprun" + quoted;
  }
  return failure;
}

}  // namespace ddprun::launcher
