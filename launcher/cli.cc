// SPDX-License-Identifier: Apache-2.0
// The one place that knows flags. To add one: a field in launch_config.h, a line in add_options(),
// its conversion in fill() if it is no plain text, and docs/launcher.md.
#include "launcher/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "common/env_names.h"
#include "common/suggest.h"
#include "launcher/hang_flags.h"
#include "launcher/help_text.h"

namespace ddprun::launcher {
namespace {

constexpr double kMaxSeconds = 86'400'000;  // 1000 days, the control protocol's limit

// Limits of the whole job: each is a flag, and a key of --rdzv-conf with "_" for "-".
struct TimeLimit {
  const char* flag;
  std::chrono::milliseconds LaunchConfig::*field;
  const char* help;
};
constexpr std::array kTimeLimits = {
    TimeLimit{"last-call-timeout", &LaunchConfig::last_call_timeout,
              "MIN nodes are there: wait so long for MAX (default 30)"},
    TimeLimit{"keep-alive-timeout", &LaunchConfig::keep_alive_timeout,
              "a node of which nothing is heard for so long is lost (default 5)"},
    TimeLimit{"keep-alive-interval", &LaunchConfig::keep_alive_interval,
              "between a node's pings (default: a third of the time-out)"},
    TimeLimit{"start-timeout", &LaunchConfig::start_timeout,
              "until every worker of a round runs (default 300)"},
    TimeLimit{"exit-barrier-timeout", &LaunchConfig::exit_barrier_timeout,
              "the first node has finished: wait so long for the others (default 3600)"},
    TimeLimit{"replacement-timeout", &LaunchConfig::replacement_timeout,
              "too few nodes are left: wait so long for others (default: end at once)"},
};

// Option values as typed, before conversion.
struct RawOptions {
  std::string nnodes = "1";
  std::string node_rank;
  std::string master_port;
  std::string max_restarts = "0";
  std::string max_node_losses = "16";
  std::string max_preemptions = "16";
  std::string no_progress_restarts = "0";
  std::string exclude_after = "0";
  std::string spares = "0";
  std::string on_join = "wait";
  std::string max_restart_delay;
  std::string rdzv_conf;
  std::string rendezvous_timeout;
  std::array<std::string, kTimeLimits.size()> time_limits;
  std::string rendezvous_lost_timeout;
  std::string shutdown_timeout;
  std::string hang_timeout;
  std::string hang_action;
  PreemptionFlags preemption;
  std::string preflight;
  std::string preflight_timeout;
};

// "nproc-per-node" → "--nproc-per-node,--nproc_per_node".
std::string spellings(const std::string& name) {
  std::string underscored = name;
  std::replace(underscored.begin(), underscored.end(), '-', '_');
  return underscored == name ? "--" + name : "--" + name + ",--" + underscored;
}

class CommandLineParser {
 public:
  CommandLineParser() { add_options(); }

  CommandLine parse(const std::vector<std::string>& args, const Environment& environment) {
    result_.config.typed = args;
    const std::size_t program_at = find_program(args);
    if (!result_.problems.empty()) return std::move(result_);
    std::vector<std::string> flags = flags_of_environment(environment);
    for (std::size_t i = 0; i < program_at; ++i) {
      if (args[i] == "--") continue;
      if (args[i].starts_with("--") &&
          args[i].find('=') + 1 == args[i].size()) {  // "--flag=": an empty value
        flags.push_back(args[i].substr(0, args[i].size() - 1));
        flags.emplace_back();
      } else {
        flags.push_back(args[i]);
      }
    }
    std::reverse(flags.begin(), flags.end());  // CLI11 reads from the back
    try {
      app_.parse(std::move(flags));
    } catch (const CLI::ConversionError& error) {  // the flags' only one: the others take any text
      result_.problems.push_back(std::string(error.what()) + ": this flag takes no value");
      return std::move(result_);
    } catch (const CLI::ParseError& error) {
      result_.problems.emplace_back(error.what());
      return std::move(result_);
    }
    if (help_ || version_) {
      result_.action = CommandLine::Action::kPrintText;
      result_.text = help_ ? kHelpBegin + app_.help() + "\n" + kHelpEnd
                           : "ddprun " DDPRUN_VERSION " (c10d store protocol, no TLS)\n";
      return std::move(result_);
    }
    if (program_at < args.size()) {
      const auto program = args.begin() + static_cast<std::ptrdiff_t>(program_at);
      result_.config.program = *program;
      result_.config.program_args.assign(program + 1, args.end());
    }
    fill();
    for (std::string& problem : validate(result_.config)) {
      result_.problems.push_back(std::move(problem));
    }
    return std::move(result_);
  }

 private:
  void add_options() {
    LaunchConfig& config = result_.config;
    app_.set_help_flag();
    app_.formatter(one_spelling_formatter());
    app_.get_formatter()->column_width(36);
    app_.name("");

    group_ = "Size";
    text("nnodes", raw_.nnodes, "N|MIN:MAX", "number of nodes (default 1)");
    text("nproc-per-node", config.nproc_per_node, "N|auto|gpu|cpu",
         "workers on this node (default 1); gpu: one per visible GPU; cpu: one per CPU");
    text("max-restarts", raw_.max_restarts, "N",
         "restarts of the job after a worker failed (default 0)");
    text("max-node-losses", raw_.max_node_losses, "N",
         "restarts of the job after a node was lost (default 16)");
    text("max-restart-delay", raw_.max_restart_delay, "SECONDS",
         "a crash loop's rounds wait 1, 2, 4, … seconds, at most this (default 30)");
    text("max-preemptions", raw_.max_preemptions, "N",
         "restarts of the job after a node was preempted (default 16)");
    text("no-progress-restarts", raw_.no_progress_restarts, "N",
         "end after N rounds in a row without a finished step (default 0: don't)");
    text("exclude-after", raw_.exclude_after, "N",
         "a node whose workers were the first to fail N times is out (default 0: never)");
    text("spares", raw_.spares, "N",
         "nodes beyond --nnodes that wait and replace lost ones (default 0)");
    flag("prewarm", config.prewarm,
         "a spare's workers start at once and wait for their ranks (docs/agent-socket.md)");
    text("on-join", raw_.on_join, "wait|restart",
         "a late node waits for the next round, or starts it at once (default wait)");

    group_ = "Where the nodes meet";
    flag("standalone", config.standalone, "one node, any free port, nothing to configure");
    text("rdzv-endpoint", config.rdzv_endpoint, "HOST[:PORT]",
         "where the nodes meet; the node that has HOST's address serves it (port 29400)");
    text("rdzv-id", config.rdzv_id, "ID", "name of the job, the same on every node");
    text("rdzv-backend", config.rdzv_backend, "c10d|static", "how ranks are given out");
    text("rdzv-conf", raw_.rdzv_conf, "K=V,…",
         "is_host (0 or 1); in seconds: join_timeout (600), last_call_timeout (30), "
         "keep_alive_timeout (5), start_timeout (300), exit_barrier_timeout (3600)");
    text("node-rank", raw_.node_rank, "N", "this node's rank; binding with --master-addr");
    text("master-addr", config.master_addr, "HOST", "address of node rank 0");
    text("master-port", raw_.master_port, "PORT", "port on node rank 0 (29500)");
    text("local-addr", config.local_addr, "ADDR", "what peers are told to reach this node by");
    text("topology", config.topology, "LABEL",
         "where this node stands, widest switch first: pod1.rack7; neighbours get adjacent ranks");

    group_ = "Time limits";
    text("rendezvous-timeout", raw_.rendezvous_timeout, "SECONDS",
         "give up when not all nodes have joined (default 600)");
    text("rendezvous-lost-timeout", raw_.rendezvous_lost_timeout, "SECONDS",
         "workers run on for this long without a rendezvous (default 60)");
    text("shutdown-timeout", raw_.shutdown_timeout, "SECONDS",
         "from SIGTERM to SIGKILL (default 30)");
    for (std::size_t i = 0; i < kTimeLimits.size(); ++i) {
      text(kTimeLimits[i].flag, raw_.time_limits[i], "SECONDS", kTimeLimits[i].help);
    }

    group_ = "Ranks that make no progress";
    text("hang-timeout", raw_.hang_timeout, "TIME|KEY=TIME,…",
         "no progress for so long is a hang: of steps, or for each of startup, first, step, "
         "checkpoint, teardown, foreign; 30s, 10m, 2h (default: learnt from the first steps)");
    text("hang-action", raw_.hang_action, "restart|report|off",
         "what is done about it (default: restart where workers report their steps, else report)");

    group_ = "Preemption";
    text("time-limit", raw_.preemption.time_limit, "DURATION|auto",
         "of this job: 90m, 1-12:00:00; auto: Slurm's. Workers are asked to leave before");
    text("preemption-signals", raw_.preemption.signals, "NAMES|none",
         "ddprun gets one when this node is about to be taken away (default SIGUSR1)");
    text("preemption-notice", raw_.preemption.notice, "DURATION",
         "from such a warning until the workers are stopped (default 60)");

    group_ = "What runs";
    text("preflight", raw_.preflight, "COMMAND",
         "run on this node before it joins; if it fails, the node stays out (docs/preflight.md)");
    text("preflight-timeout", raw_.preflight_timeout, "SECONDS",
         "a preflight that takes longer has failed (default 60)");
    flag("module", config.module, "PROGRAM is a Python module: python -u -m PROGRAM", "-m");
    flag("no-python", config.no_python, "execute PROGRAM as it is, never by python");
    text("role", config.role, "NAME", "ROLE_NAME of the workers (default \"default\")");

    group_ = "Other";
    flag("help", help_, "this text", "-h");
    flag("version", version_, "version, and what is built in");
  }

  void text(const std::string& name, std::string& target, const char* type, const char* what) {
    CLI::Option* option = app_.add_option(spellings(name), target, what);
    option->type_name(type)->group(group_)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  void flag(const std::string& name, bool& target, const char* what, const char* letter = "") {
    const std::string names = *letter ? spellings(name) + "," + letter : spellings(name);
    CLI::Option* option = app_.add_flag(names, target, what);
    option->group(group_)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  // Index of PROGRAM in `args`, or their number. An unknown flag before it is a problem.
  std::size_t find_program(const std::vector<std::string>& args) {
    for (std::size_t i = 0; i < args.size(); ++i) {
      const std::string& arg = args[i];
      if (arg == "--") return i + 1;
      if (arg.size() < 2 || arg[0] != '-') return i;
      const std::string name = arg.substr(0, arg.find('='));
      const CLI::Option* option = app_.get_option_no_throw(name);
      if (!option) {
        result_.problems.push_back("unknown flag " + name + did_you_mean(name, flag_names()) +
                                   "; flags of the program come after its name");
        return i;
      }
      if (name.size() != arg.size() || option->get_items_expected_max() == 0) continue;
      if (++i == args.size()) {  // its value
        result_.problems.push_back(name + ": wants a value, " + option->get_type_name());
      }
    }
    return args.size();
  }

  std::vector<std::string> flag_names() const {
    std::vector<std::string> names;
    for (const CLI::Option* option : app_.get_options()) {
      names.push_back("--" + option->get_lnames()[0]);
    }
    return names;
  }

  // PET_* as flags; the typed ones come later and win. Where the nodes meet is read by
  // endpoint_discovery.h, which has an order of its own.
  std::vector<std::string> flags_of_environment(const Environment& environment) const {
    std::vector<std::string> flags;
    for (const std::string& name : flag_names()) {
      if (name == "--rdzv-endpoint" || name == "--master-addr" || name == "--master-port" ||
          name == "--rdzv-id" || name == "--help" || name == "--version") {
        continue;
      }
      std::string variable = env::kPetPrefix + name.substr(2);
      for (char& letter : variable) {
        letter = letter == '-' ? '_' : static_cast<char>(std::toupper(letter));
      }
      if (const auto value = find_variable(environment, variable)) {
        flags.push_back(name + "=" + *value);
      }
    }
    return flags;
  }

  // Converts what is no plain text.
  void fill() {
    LaunchConfig& config = result_.config;
    const std::size_t colon = raw_.nnodes.find(':');
    const auto min_nodes = number(raw_.nnodes.substr(0, colon));
    const auto max_nodes =
        colon == std::string::npos ? min_nodes : number(raw_.nnodes.substr(colon + 1));
    config.min_nodes = min_nodes.value_or(0);  // 0 is a problem that validate() words
    config.max_nodes = max_nodes.value_or(0);
    refuse_empty_numbers();
    integer("max-restarts", raw_.max_restarts, 1'000'000, config.max_restarts);
    integer("max-node-losses", raw_.max_node_losses, 1'000'000, config.max_node_losses);
    integer("max-preemptions", raw_.max_preemptions, 1'000'000, config.max_preemptions);
    integer("no-progress-restarts", raw_.no_progress_restarts, 1'000'000,
            config.no_progress_restarts);
    integer("exclude-after", raw_.exclude_after, 1'000'000, config.exclude_after);
    integer("spares", raw_.spares, 1'000'000, config.spares);
    seconds("max-restart-delay", raw_.max_restart_delay, config.max_restart_delay);
    config.restart_on_join = raw_.on_join == "restart";
    if (!config.restart_on_join && raw_.on_join != "wait") {
      result_.problems.push_back("--on-join=" + raw_.on_join + ": must be wait or restart");
    }
    if (!raw_.node_rank.empty()) {
      integer("node-rank", raw_.node_rank, 1'000'000, config.node_rank.emplace(0));
    }
    if (!raw_.master_port.empty()) {
      int port = 0;
      integer("master-port", raw_.master_port, 65535, port);
      config.master_port = static_cast<std::uint16_t>(port);
    }
    seconds("rendezvous-timeout", raw_.rendezvous_timeout, config.rendezvous_timeout);
    seconds("rendezvous-lost-timeout", raw_.rendezvous_lost_timeout,
            config.rendezvous_lost_timeout);
    seconds("shutdown-timeout", raw_.shutdown_timeout, config.shutdown_timeout);
    fill_hang_flags();
    config.preemption = parse_preemption(raw_.preemption, result_.problems);
    if (app_.count("--preflight") > 0) config.preflight = raw_.preflight;
    seconds("preflight-timeout", raw_.preflight_timeout, config.preflight_timeout);
    split_rdzv_conf();
    read_time_limits();
  }

  void fill_hang_flags() {
    LaunchConfig& config = result_.config;
    if (const auto action = parse_hang_action(raw_.hang_action)) {
      config.hang_action = *action;
    } else {
      result_.problems.push_back("--hang-action=" + raw_.hang_action +
                                 ": must be restart, report or off");
    }
    if (raw_.hang_timeout.empty() && app_.count("--hang-timeout") == 0) return;
    const std::string problem = parse_hang_timeout(raw_.hang_timeout, config.hang_limits);
    if (!problem.empty()) result_.problems.push_back("--hang-timeout=" + problem);
  }

  // "--node-rank=$RANK" with an unset variable must not become "any rank".
  void refuse_empty_numbers() {
    std::vector<std::pair<const char*, const std::string*>> numbers = {
        {"node-rank", &raw_.node_rank},
        {"master-port", &raw_.master_port},
        {"rendezvous-timeout", &raw_.rendezvous_timeout},
        {"rendezvous-lost-timeout", &raw_.rendezvous_lost_timeout},
        {"shutdown-timeout", &raw_.shutdown_timeout},
        {"time-limit", &raw_.preemption.time_limit},
        {"preflight-timeout", &raw_.preflight_timeout},
        {"max-restart-delay", &raw_.max_restart_delay}};
    for (std::size_t i = 0; i < kTimeLimits.size(); ++i) {
      numbers.emplace_back(kTimeLimits[i].flag, &raw_.time_limits[i]);
    }
    for (const auto& [name, value] : numbers) {
      const std::string flag = "--" + std::string(name);
      if (value->empty() && app_.count(flag) > 0) {
        result_.problems.push_back(flag + "=: wants a number, got nothing");
      }
    }
  }

  static std::optional<int> number(const std::string& value) {
    int result = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, result);
    if (value.empty() || error != std::errc() || stop != end) return std::nullopt;
    return result;
  }

  void integer(const char* name, const std::string& value, int most, int& target) {
    const auto parsed = number(value);
    if (parsed && *parsed >= 0 && *parsed <= most) {
      target = *parsed;
    } else {
      result_.problems.push_back("--" + std::string(name) + "=" + value +
                                 ": wants a number from 0 to " + std::to_string(most));
    }
  }

  void seconds(const std::string& name, const std::string& value,
               std::chrono::milliseconds& target) {
    if (value.empty()) return;
    double parsed = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, parsed);
    if (error == std::errc() && stop == end && parsed >= 0 && parsed <= kMaxSeconds) {
      target = std::chrono::milliseconds(static_cast<std::int64_t>(parsed * 1000));
    } else {
      result_.problems.push_back("--" + name + "=" + value +
                                 ": wants a number of seconds from 0 to 86400000");
    }
  }

  void split_rdzv_conf() {
    LaunchConfig& config = result_.config;
    std::string_view rest = raw_.rdzv_conf;
    while (!rest.empty()) {
      const std::string_view item = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(item.size() + 1, rest.size()));
      const std::size_t equals = item.find('=');
      if (equals == std::string_view::npos || equals == 0) {
        result_.problems.push_back("--rdzv-conf: \"" + std::string(item) + "\" is not KEY=VALUE");
        continue;
      }
      config.rdzv_conf[std::string(item.substr(0, equals))] = item.substr(equals + 1);
    }
  }

  // A limit is given by its flag or, as torchrun has it, by a key of --rdzv-conf; the flag wins.
  void read_time_limits() {
    LaunchConfig& config = result_.config;
    if (raw_.rendezvous_timeout.empty()) {
      read_limit("--rdzv-conf=join_timeout", conf_value("join_timeout"), config.rendezvous_timeout);
    }
    for (std::size_t i = 0; i < kTimeLimits.size(); ++i) {
      const TimeLimit& limit = kTimeLimits[i];
      std::string key = limit.flag;
      std::replace(key.begin(), key.end(), '-', '_');
      const bool has_flag = !raw_.time_limits[i].empty();
      read_limit(has_flag ? "--" + std::string(limit.flag) : "--rdzv-conf=" + key,
                 has_flag ? raw_.time_limits[i] : conf_value(key), config.*limit.field);
    }
    // torchrun's way to say it: so many pings without an answer.
    const bool is_given =
        app_.count("--keep-alive-timeout") > 0 || config.rdzv_conf.contains("keep_alive_timeout");
    const std::string attempts = conf_value("keep_alive_max_attempt");
    if (is_given || (attempts.empty() && config.keep_alive_interval.count() == 0)) return;
    int count = 3;
    if (!attempts.empty()) {
      integer("rdzv-conf=keep_alive_max_attempt", attempts, 1'000'000, count);
      if (count == 0) {
        result_.problems.push_back("--rdzv-conf=keep_alive_max_attempt: must be more than 0");
      }
    }
    const std::chrono::milliseconds torchruns_interval{5'000};
    config.keep_alive_timeout =
        count *
        (config.keep_alive_interval.count() > 0 ? config.keep_alive_interval : torchruns_interval);
  }

  std::string conf_value(const std::string& key) const {
    const auto found = result_.config.rdzv_conf.find(key);
    return found == result_.config.rdzv_conf.end() ? "" : found->second;
  }

  // `name` is shown with its dashes.
  void read_limit(const std::string& name, const std::string& value,
                  std::chrono::milliseconds& target) {
    if (value.empty()) return;
    seconds(name.substr(2), value, target);
    if (target.count() <= 0) result_.problems.push_back(name + ": must be more than 0 seconds");
  }

  CLI::App app_;
  RawOptions raw_;
  std::string group_;
  bool help_ = false, version_ = false;
  CommandLine result_;
};

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& args,
                               const Environment& environment) {
  return CommandLineParser().parse(args, environment);
}

}  // namespace ddprun::launcher
