// SPDX-License-Identifier: Apache-2.0
#include "launcher/prepare.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "agent/binding/binding_plan.h"
#include "agent/isolation/cgroup_tree.h"
#include "agent/output/log_tree.h"
#include "agent/worker_environment.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/process_facts.h"
#include "common/random_id.h"
#include "common/text.h"
#include "launcher/endpoint_claim.h"
#include "launcher/num_workers.h"
#include "launcher/report/job_report.h"
#include "launcher/step_token.h"
#include "rendezvous/store_server/file_limit.h"

namespace ddprun::launcher {
namespace {

// With fewer open files no worker can start. With more, a shortage is reported when it occurs.
constexpr std::size_t kMinOpenFiles = 32;

void find_workers(Preparation& result, const std::string& argv0) {
  JobPlan& plan = result.plan;
  const auto variable = plan.environment.find(env::kCudaVisibleDevices);
  const auto visible =
      variable == plan.environment.end() ? std::nullopt : std::optional(variable->second);
  const NumWorkers workers = num_workers(plan.config.nproc_per_node, real_machine(), visible);
  plan.num_workers = workers.count;
  if (!workers.problem.empty()) {
    result.problems.push_back(
        concat("--nproc-per-node=", plan.config.nproc_per_node, ": ", workers.problem));
  }
  if (!workers.note.empty()) result.notes.push_back(workers.note);
  if (std::string note = gpu_note(workers.count, real_machine(), visible); !note.empty()) {
    result.notes.push_back(std::move(note));
  }

  plan.program = find_program(plan.config, argv0, plan.environment);
  if (!plan.program.problem.empty()) result.problems.push_back(plan.program.problem);
  if (!plan.program.note.empty()) result.notes.push_back(plan.program.note);
  if (plan.num_workers > 1 && !plan.environment.contains(env::kOmpNumThreads)) {
    result.notes.push_back("OMP_NUM_THREADS=1 for each worker, so that " +
                           std::to_string(plan.num_workers) +
                           " workers don't crowd each other out; set it to tune");
  }
}

constexpr char kMemory[] = "/dev/shm";

// Notes ranks that this node lacks: an option that names only these would hide all output.
void note_missing_ranks(Preparation& result, const OptionValues& given) {
  const int num_workers = result.plan.num_workers;
  const agent::OutputOptions& output = result.plan.config.output;
  const auto check = [&](const char* option, int largest, const char* ranks) {
    if (largest < num_workers) return;
    result.notes.push_back(given.as_given(option) + ": this node has no " + ranks + " rank " +
                           std::to_string(largest) + ", its last one is " +
                           std::to_string(num_workers - 1));
  };
  check("redirects", output.redirects.largest_rank(), "local");
  check("tee", output.tee.largest_rank(), "local");
  check("local-ranks-filter", output.local_ranks.largest(), "local");
  if (result.plan.config.max_nodes == 1) check("ranks-filter", output.ranks.largest(), "global");
}

// Checks only a job of one node: with several, the first round shows it.
void check_stdin_rank(Preparation& result, const OptionValues& given) {
  const JobPlan& plan = result.plan;
  const int rank = plan.config.output.stdin_rank.value_or(0);
  if (plan.config.max_nodes > 1 || rank < plan.num_workers) return;
  result.problems.push_back(concat(given.as_given("stdin-rank"), ": there is no rank ", rank,
                                   ", the last one is ", plan.num_workers - 1));
}

bool counts_gpus(const std::string& nproc_per_node) {
  return nproc_per_node == "gpu" || nproc_per_node == "auto";
}

void find_output(Preparation& result, const std::string& argv0, const std::string& log_dir_given) {
  JobPlan& plan = result.plan;
  OutputSetup setup = set_up_output(
      plan.config.output, plan.environment, argv0, temporary_directory(plan.environment),
      log_dir_given, plan.config.dry_run ? LogDirectory::kOnlyChecked : LogDirectory::kMade);
  if (!setup.problem.empty()) result.problems.push_back(std::move(setup.problem));
  if (!setup.note.empty()) result.notes.push_back(std::move(setup.note));
}

void check_report(Preparation& result) {
  const std::string& path = result.plan.config.report;
  if (path.empty()) return;
  const ReportFile file(path);
  const bool is_dry = result.plan.config.dry_run;
  const std::string problem = is_dry ? file.problem() : file.problem_by_trial();
  if (!problem.empty())
    result.problems.push_back("--report=" + path + " can't be written: " + problem);
}

// Checks the file of events for a dry run. A real run opens it a moment later.
void check_events(Preparation& result) {
  const std::string& path = result.plan.config.events;
  if (path.empty() || path == kNoEvents || !result.plan.config.dry_run) return;
  const std::string problem = ReportFile(path).problem();
  if (!problem.empty()) {
    result.problems.push_back("--events=" + path + " can't be opened: " + problem);
  }
}

void check_doctor(Preparation& result) {
  if (result.plan.config.preflight_doctor == DoctorGate::kOff) return;
  const std::string program = helper_program("ddprunctl");
  if (::access(program.c_str(), X_OK) == 0) return;
  result.problems.push_back("--preflight-doctor: " + program + ": " + errno_text(errno) +
                            "; install ddprunctl beside ddprun");
}

// In a job of one node no other can take its place, so problems are only printed.
void check_fitness(Preparation& result) {
  JobPlan& plan = result.plan;
  plan.needs = {
      .program = plan.program.argv.front(),
      .script = plan.program.script,
      .directories = {temporary_directory(plan.environment)},  // sockets can be there, too
      .uses_memory = runtime_directory(plan.environment) == kMemory,
      .num_workers = plan.num_workers,
      .num_gpus = counts_gpus(plan.config.nproc_per_node) ? agent::num_listed_gpus() : 0};
  for (const auto& problem : check_node(plan.needs, gather_node_facts(plan.needs))) {
    const bool is_said =
        problem.verdict == agent::NodeVerdict::kSaid || !is_replaceable(plan.config);
    auto& lines = is_said                                              ? result.notes
                  : problem.verdict == agent::NodeVerdict::kUsersFault ? result.problems
                                                                       : result.unfit;
    lines.push_back("preflight: " + to_text(problem));
  }
}

// Fixed ranks work as in torchrun: all nodes of a range are needed, and they have a time limit of
// their own.
void fix_ranks(Preparation& result) {
  LaunchConfig& config = result.plan.config;
  if (config.min_nodes != config.max_nodes) {
    result.notes.push_back(concat("--nnodes=", config.min_nodes, ":", config.max_nodes, " means ",
                                  counted(config.max_nodes, "node"),
                                  " where their ranks are fixed (", result.plan.rendezvous.origin,
                                  ")"));
    config.min_nodes = config.max_nodes;
  }
  if (config.static_timeout.count() > 0) config.timeouts.join = config.static_timeout;
}

void find_placement(Preparation& result) {
  JobPlan& plan = result.plan;
  plan.placement = place_workers(plan.config, plan.environment, plan.num_workers,
                                 needs_machine_layout(plan.config)
                                     ? agent::read_machine_layout("/", agent::allowed_cpus())
                                     : agent::MachineLayout());
  for (std::string& problem : plan.placement.problems)
    result.problems.push_back(std::move(problem));
  for (std::string& note : plan.placement.notes) result.notes.push_back(std::move(note));
}

// If this node can't enforce the limits, another one may.
void find_isolation(Preparation& result) {
  JobPlan& plan = result.plan;
  if (!plan.config.worker_limits.any()) return;
  const agent::CgroupTree tree;
  const agent::IsolationRequest request{
      .limits = plan.config.worker_limits,
      .num_workers = plan.num_workers,
      .bound = plan.placement.cpus,
      .allowed = agent::allowed_cpus(),
      .page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))};
  plan.isolation = plan_isolation(request, find_cgroup_place(tree, ::getpid(), ::geteuid()), tree);
  for (const std::string& problem : plan.isolation.problems) result.problems.push_back(problem);
  const std::string shortfall = plan.isolation.shortfall();
  if (shortfall.empty()) return;
  if (!plan.config.worker_limits.required) {
    result.notes.push_back(shortfall);
  } else {
    auto& lines = is_replaceable(plan.config) ? result.unfit : result.problems;
    lines.push_back("--worker-limits=required: " + shortfall);
  }
}

// Workers may run in another directory than ddprun, and ddprun's own may be removed.
void check_temporary_directory(Preparation& result) {
  const std::string chosen = temporary_directory(result.plan.environment);
  if (chosen.starts_with('/')) return;
  result.problems.push_back("TMPDIR=" + chosen +
                            ": is relative, and the current directory is not known");
}

// If ddprun was copied without its parts, all nodes would find out only in the first round.
void check_own_parts(Preparation& result) {
  const std::string warden = helper_program("ddprun-warden");
  if (::access(warden.c_str(), X_OK) == 0) return;
  result.problems.push_back(warden + ", a part of ddprun: " + errno_text(errno) +
                            "; install it beside ddprun or in ../libexec/ddprun");
}

void find_rendezvous(Preparation& result, const std::vector<ConfigFile>& files,
                     const std::optional<SchedulerStep>& step) {
  JobPlan& plan = result.plan;
  if (plan.config.max_nodes > 1) {
    plan.topology = topology_label(plan.config, plan.environment, files);
  }
  const DiscoveryInput input{.config = plan.config,
                             .environment = plan.environment,
                             .files = files,
                             .step = step,
                             .user_id = ::getuid(),
                             .random_id = plan.config.dry_run ? kDrawnAtStart : random_id()};
  const Discovery discovery = discover_endpoint(input);
  if (discovery.nothing_found) {
    std::vector<std::string> looked_at = discovery.looked_at;
    for (const ConfigFile& file : files) {
      if (file.is_hidden) looked_at.push_back(file.path + ": no permission to enter its directory");
    }
    result.problems.push_back(no_endpoint_message(plan.config, primary_address(), looked_at));
  } else if (!discovery.plan) {
    result.problems.push_back(discovery.problem);
  } else {
    plan.rendezvous = *discovery.plan;
    if (plan.rendezvous.mode == RendezvousMode::kStatic) fix_ranks(result);
  }
  if (!discovery.note.empty()) result.notes.push_back(discovery.note);
}

void read_secrets(Preparation& result) {
  JobPlan& plan = result.plan;
  const LaunchConfig& config = plan.config;
  if (config.token_file.empty() && !config.tls.any()) return;
  try {
    if (!config.token_file.empty())
      plan.token = Secret::from_flag("--token-file", config.token_file);
  } catch (const Error& error) {
    result.problems.emplace_back(error.what());
  }
  try {
    if (config.tls.any()) plan.tls = security::make_client_context(config.tls);
  } catch (const Error& error) {
    result.problems.emplace_back(error.what());
  }
  const char* secret = config.token_file.empty() ? "--tls-ca" : "--token-file";
  if (config.wanted_store == membership::StoreMode::kDirect) {
    result.problems.push_back(concat("--store=direct with ", secret,
                                     ": everybody who reaches node rank 0 could use the workers' "
                                     "store; leave --store out, or give --store=proxy"));
  } else if (!config.wanted_store) {
    plan.config.wanted_store = membership::StoreMode::kProxy;
    plan.proxy_cause = secret;
  }
}

// Nodes of a Slurm step that share a folder need no --token-file. This holds only if the step says
// where they meet, since a ddprund elsewhere doesn't know their token. It doesn't hold with fixed
// ranks: the store uses a port that the token would close. Unlike --token-file it makes no store
// proxied: nobody asked for that, and programs may need a real MASTER_ADDR.
void find_step_token(Preparation& result, const std::optional<SchedulerStep>& step) {
  JobPlan& plan = result.plan;
  const LaunchConfig& config = plan.config;
  const bool is_own = step && step->num_hosts > 1 && config.max_nodes > 1 &&
                      plan.rendezvous.mode == RendezvousMode::kElastic &&
                      plan.rendezvous.origin == step->name && !config.rdzv_conf.contains("is_host");
  if (!is_own || step_token_name(plan.environment).empty()) return;
  const auto told = find_variable(plan.environment, env::kSharedDir);
  if (told && !told->starts_with('/')) {
    result.problems.push_back(concat(env::kSharedDir, "=", *told,
                                     ": wants the absolute path of a folder that all nodes of the "
                                     "step share; empty: they share none"));
    return;
  }
  if (plan.token || config.tls.any() || config.dry_run) return;
  try {
    if (auto made = own_step_token(plan.environment)) {
      plan.token = std::move(made->secret);
      plan.step_token = std::move(made->path);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidArgument) {
      result.problems.push_back(concat("the token of the ", step->name, ": ", error.what(),
                                       ". Mend that, or give --token-file, or an empty ",
                                       env::kSharedDir));
      return;
    }
    result.notes.push_back(concat("this node has no token of the ", step->name, ": ", error.what(),
                                  ". It goes on without; nodes that have one refuse it: then give "
                                  "all --token-file, or an empty ",
                                  env::kSharedDir));
  }
}

std::optional<int> terminal_columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

// Output that isn't shown must not be lost. Output that is also shown needs no file.
bool needs_files(const agent::OutputOptions& options) {
  return !options.redirects.empty() || !options.stdout_filters.empty() ||
         !options.stderr_filters.empty();
}

}  // namespace

std::string temporary_directory(const Environment& environment) {
  const std::string chosen = find_variable(environment, env::kTmpdir).value_or("/tmp");
  std::error_code error;
  const std::string whole = std::filesystem::absolute(chosen, error).string();
  return error ? chosen : whole;
}

std::string runtime_directory(const Environment& environment) {
  const bool is_chosen = find_variable(environment, env::kTmpdir).has_value();
  const bool use_memory = !is_chosen && ::access(kMemory, W_OK | X_OK) == 0;
  return use_memory ? kMemory : temporary_directory(environment);
}

bool is_replaceable(const LaunchConfig& config) {
  return config.max_nodes > 1 || config.spares > 0;
}

Preparation prepare(CommandLine line, Environment environment, const std::string& argv0) {
  Preparation result;
  if (const std::size_t limit = store::raise_file_limit(); limit < kMinOpenFiles) {
    result.problems.push_back("the limit of open files is " + std::to_string(limit) +
                              ", ddprun needs " + std::to_string(kMinOpenFiles) +
                              " and more with its workers: raise it (ulimit -Hn)");
    return result;
  }
  result.plan.config = std::move(line.config);
  result.plan.environment = std::move(environment);
  if (std::string problem = resolve_time_limit(result.plan.config.preemption,
                                               result.plan.environment, std::time(nullptr));
      !problem.empty()) {
    result.problems.push_back(std::move(problem));
  }
  result.notes = result.plan.config.notes;
  check_own_parts(result);
  check_temporary_directory(result);
  find_workers(result, argv0);
  if (result.plan.num_workers > 0) {
    note_missing_ranks(result, line.values);
    check_stdin_rank(result, line.values);
    find_placement(result);
    find_isolation(result);
  }
  find_rendezvous(result, line.files, line.step);
  read_secrets(result);
  if (result.problems.empty()) find_step_token(result, line.step);
  LaunchConfig& settled = result.plan.config;
  if (settled.connect_timeout.count() == 0) settled.connect_timeout = settled.timeouts.join;
  if (result.problems.empty()) find_output(result, argv0, line.values.as_given("log-dir"));
  if (result.problems.empty()) check_report(result);
  if (result.problems.empty()) check_events(result);
  check_doctor(result);
  if (result.problems.empty()) check_fitness(result);
  return result;
}

agent::WorkerCommand worker_command(const JobPlan& plan) {
  return {plan.program.argv, plan.program.is_torchruns};
}

agent::WorkerEnvironmentOptions worker_environment_options(const JobPlan& plan) {
  agent::WorkerEnvironmentOptions options;
  options.inherited = plan.environment;
  // A ddprun that a worker starts runs another job, and would find this port in use.
  for (const char* prefix : {env::kOwnPrefix, env::kPetPrefix}) {
    options.inherited.erase(std::string(prefix) + "METRICS");
    options.inherited.erase(std::string(prefix) + "EVENTS");
  }
  options.run_id = plan.rendezvous.job_id;
  options.role = plan.config.role;
  options.signals_to_handle = plan.config.signals_to_handle.text;
  options.max_restarts = plan.config.max_restarts;
  options.num_workers = plan.num_workers;
  options.devices = plan.placement.devices;
  options.recovers_in_place = plan.config.recovery == membership::Recovery::kInPlace;
  options.observes = plan.config.observes;
  options.terminal_columns = terminal_columns();
  options.network = [](const std::string& node_addr) {
    return agent::network_variables(node_addr);
  };
  return options;
}

OutputSetup set_up_output(agent::OutputOptions& options, const Environment& environment,
                          const std::string& argv0, const std::string& temporary_directory,
                          const std::string& log_dir_given, LogDirectory directory) {
  options.inherit = is_torchrun(argv0);
  // torchrun treats an empty template as none, and uses its default.
  if (options.inherit && options.prefix_template == "") options.prefix_template.reset();
  if (!options.prefix_template) {
    options.prefix_template = find_variable(environment, env::kLogLinePrefixTemplate);
  }
  OutputSetup result;
  std::string flag = log_dir_given;
  if (options.log_dir.empty() && needs_files(options)) {
    const bool is_made = directory == LogDirectory::kMade;
    options.log_dir = temporary_directory + "/ddprun_logs_" +
                      (is_made ? random_id().substr(0, 8) : kDrawnAtStart);
    flag = "the log directory " + options.log_dir;
    result.note = "log files are in " + options.log_dir + "; --log-dir chooses another directory";
  }
  if (!options.has_files()) return result;
  if (!options.inherit && options.tee.empty() && !needs_files(options)) {
    result.note = log_dir_given + " holds only error files; -t 3 or -r 3 adds the workers' output";
  }
  std::string problem;
  if (directory == LogDirectory::kMade) {
    problem = agent::LogTree::problem_with(options.log_dir);
  } else if (directory == LogDirectory::kOnlyChecked) {
    problem = agent::LogTree::foreseen_problem_with(options.log_dir);
  }
  if (!problem.empty()) result.problem = flag + " " + problem;
  return result;
}

}  // namespace ddprun::launcher
