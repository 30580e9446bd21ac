// SPDX-License-Identifier: Apache-2.0
#include "agent/standing/standing_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/completion.h"
#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/man_page.h"
#include "common/parse_problems.h"
#include "common/process_facts.h"
#include "common/secret.h"
#include "common/standard_streams.h"
#include "common/wall_time.h"
#include "launcher/config_file.h"
#include "launcher/metrics/metrics_server.h"
#include "launcher/num_workers.h"
#include "launcher/options/option_table.h"
#include "rendezvous/gangs/gang.h"

namespace ddprun::launcher {
namespace {

struct StandingTexts {
  std::string endpoint, slots = "auto", name, log_dir, keep_output = "30d", metrics = "off", config,
                        shell;
  bool print_man = false;
};

StandingCommandLine standing_failure(const std::string& message) {
  log_error(message);
  return {std::nullopt, static_cast<int>(ExitCode::kUsage)};
}

ManPage standing_man_page(const CLI::App& app) {
  return {
      .name = "ddprun-agent",
      .section = 8,
      .summary = "a node's standing agent, which runs what is submitted to a ddprund",
      .synopsis = "ddprun-agent [--rdzv-endpoint HOST:PORT] [--slots N|auto|gpu|cpu] [flags]",
      .sections = {
          {"Description",
           "Holds a connection to ddprund(8). Runs a ddprun(1) for each job of its queue that is "
           "given to this node, as the user that it runs as. What a job prints goes to "
           "files. SIGTERM, SIGINT and SIGQUIT end it, and its jobs in order; killed, it leaves "
           "none behind. SIGHUP makes it read the files of its token and certificates again. What "
           "is not given here is read from ddprun.toml(5): rdzv_endpoint, "
           "token_file, tls_ca, tls_cert, tls_key."},
          {"Options", "", man_entries(app)},
          {"Exit status",
           " 0   ended by SIGTERM, SIGINT or SIGQUIT\n 2   a bad flag or configuration; the "
           "rendezvous refused it\n 70  a fault of its own\n 74  what was asked for (--help, "
           "--print-man) "
           "can't "
           "be written to stdout"},
          {"See also", "ddprun(1), ddprund(8), ddprun.toml(5)"}}};
}

void add_options(CLI::App& app, StandingOptions& options, StandingTexts& texts) {
  constexpr auto kLast = CLI::MultiOptionPolicy::TakeLast;
  const auto add = [&](const char* flag, std::string& text, const char* help) {
    return app.add_option(flag, text, help)->multi_option_policy(kLast);
  };
  add("--rdzv-endpoint", texts.endpoint,
      "HOST:PORT of the ddprund; of several, with commas between: the one that leads")
      ->envname(env::kRdzvEndpoint);
  add("--token-file", options.token_file, "Its token; mode 600")->envname(env::kTokenFile);
  add("--tls-ca", options.tls.ca, "Authority of its certificate (PEM)");
  add("--tls-cert", options.tls.cert, "This side's certificate (PEM), if it wants one");
  add("--tls-key", options.tls.key, "Its key (PEM), mode 600");
  add("--slots", texts.slots, "How many workers run here at once; auto: one per GPU, else per CPU")
      ->type_name("N|auto|gpu|cpu")
      ->capture_default_str();
  add("--name", texts.name, "What this node is called; default: the host's name");
  add("--log-dir", texts.log_dir,
      "Where what jobs print goes; default: $STATE_DIRECTORY, else ~/.local/state/ddprun")
      ->type_name("DIRECTORY");
  add("--keep-output", texts.keep_output,
      "How long after its last line the output of a job is removed")
      ->type_name("DURATION|forever")
      ->capture_default_str();
  add("--metrics", texts.metrics,
      "Serve this agent's metrics for Prometheus there; :PORT = on all interfaces; 0 = any free "
      "one")
      ->type_name("[HOST]:PORT|off")
      ->capture_default_str();
  add("--config", texts.config, "FILE that is read beside ddprun.toml");
  app.add_flag("--verbose", options.verbose, "More log lines");
  app.add_flag("--print-man", texts.print_man, "Print the manual page, for man -l -");
  add_completion(app, texts.shell);
  app.footer(kDocsPlace);
}

// Takes values from the files if no flag and no variable gives them. Throws
// Error(kInvalidArgument) for a file's name that is empty.
void add_config_files(const std::vector<ConfigFile>& files, StandingOptions& options,
                      StandingTexts& texts) {
  const std::pair<std::string_view, std::string*> of_files[] = {{"token-file", &options.token_file},
                                                                {"tls-ca", &options.tls.ca},
                                                                {"tls-cert", &options.tls.cert},
                                                                {"tls-key", &options.tls.key}};
  for (const ConfigFile& file : files) {
    if (texts.endpoint.empty()) texts.endpoint = file.rdzv_endpoint;
    for (const ConfigEntry& entry : file.options) {
      for (const auto& [option, path] : of_files) {
        if (entry.option != option || !path->empty()) continue;
        *path = entry.value;
        if (!path->empty()) continue;
        throw Error(ErrorCode::kInvalidArgument,
                    concat(file.path, ":", entry.line, ": ", underscored(entry.option),
                           " wants a value, got nothing"));
      }
    }
  }
}

std::string output_directory(const std::string& given, const Environment& environment) {
  if (!given.empty()) return std::filesystem::absolute(given).string();
  if (const auto state = find_variable(environment, "STATE_DIRECTORY")) return *state;
  const auto states = user_directory(environment, env::kXdgStateHome, ".local/state");
  return states ? *states + "/ddprun" : "";
}

// Returns all problems.
std::vector<std::string> settle_standing(const CLI::App& app, const StandingTexts& texts,
                                         const Environment& environment, StandingOptions& options) {
  std::vector<std::string> wrong =
      empty_files(app, {"--token-file", "--tls-ca", "--tls-cert", "--tls-key"});
  const auto refuse = [&](const char* flag, const std::string& value, const auto&... what) {
    wrong.push_back(concat(flag, "=", value, ": ", what...));
  };
  if (texts.endpoint.empty()) {
    wrong.emplace_back(
        "where is the ddprund? Give --rdzv-endpoint HOST:PORT, or rdzv_endpoint in "
        "/etc/ddprun/ddprun.toml");
  } else {
    auto [endpoints, problem] = parse_servers(texts.endpoint, kDefaultRendezvousPort);
    if (!problem.empty()) refuse("--rdzv-endpoint", texts.endpoint, problem);
    if (std::ranges::any_of(endpoints,
                            [](const Endpoint& each) { return names_any_address(each.host); })) {
      refuse("--rdzv-endpoint", texts.endpoint, "wants the ddprund's name or address");
    }
    options.endpoints = std::move(endpoints);
  }
  options.endpoint_text = texts.endpoint;
  const NumWorkers slots = num_workers(texts.slots, real_machine(), std::nullopt);
  if (!slots.note.empty()) log_info("--slots=", texts.slots, ": ", slots.note);
  if (!slots.problem.empty()) refuse("--slots", texts.slots, slots.problem);
  if (slots.count > gangs::kMaxSlots) refuse("--slots", texts.slots, "at most ", gangs::kMaxSlots);
  options.slots = slots.count;
  options.node = texts.name.empty() ? host_name() : texts.name;
  if (!gangs::is_gang_name(options.node)) {
    refuse("--name", options.node, "wants 1 to ", gangs::kMaxNameBytes,
           " letters, digits, \".\", \"_\", \"-\"");
  }
  if (texts.keep_output != "forever") {
    options.keep_output = parse_duration(texts.keep_output);
    if (!options.keep_output) {
      refuse("--keep-output", texts.keep_output, "wants a duration (90m, 30d) or forever");
    }
  }
  const std::string trouble = parse_metrics(texts.metrics, options.metrics);
  if (!trouble.empty()) refuse("--metrics", texts.metrics, trouble);
  if (app.get_option("--token-file")->count() == 0) {
    const std::string problem = token_variable_problem(environment);
    if (!problem.empty()) wrong.push_back(problem);
  }
  // Makes the paths absolute: each job's ddprun reads the files, too, but in the job's directory.
  for (std::string* file :
       {&options.token_file, &options.tls.ca, &options.tls.cert, &options.tls.key}) {
    if (!file->empty()) *file = std::filesystem::absolute(*file).string();
  }
  options.directory = output_directory(texts.log_dir, environment);
  if (options.directory.empty()) {
    wrong.emplace_back("--log-dir: HOME is not set: where shall output go?");
  }
  return wrong;
}

}  // namespace

StandingCommandLine parse_standing_command_line(int argc, char** argv,
                                                const Environment& environment) {
  CLI::App app("ddprun-agent: runs, on this node, what is submitted to a ddprund (docs/nodes.md)",
               "ddprun-agent");
  app.set_version_flag("--version", "ddprun-agent " DDPRUN_VERSION);
  StandingOptions options;
  StandingTexts texts;
  add_options(app, options, texts);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    std::ostringstream text;
    app.exit(asked, text, text);
    return {std::nullopt, print_what_was_asked("ddprun-agent", text.str())};
  } catch (const CLI::ParseError& error) {
    StandingCommandLine failed;
    for (const std::string& what : parse_problems<CLI::ExtrasError>(app, error, app)) {
      failed = standing_failure(concat(what, " (see ddprun-agent --help)"));
    }
    return failed;
  }
  if (texts.print_man) {
    return {std::nullopt, print_what_was_asked("ddprun-agent", to_roff(standing_man_page(app)))};
  }
  if (!texts.shell.empty()) {
    return {std::nullopt,
            print_what_was_asked("ddprun-agent",
                                 ddprun::completion_script(completed_program(app), texts.shell))};
  }
  try {
    add_config_files(load_config_files(texts.config, environment), options, texts);
  } catch (const Error& error) {
    std::istringstream lines(error.what());
    StandingCommandLine failed;
    for (std::string line; std::getline(lines, line);) failed = standing_failure(line);
    return failed;
  }
  const std::vector<std::string> wrong = settle_standing(app, texts, environment, options);
  StandingCommandLine failed;
  for (const std::string& problem : wrong) failed = standing_failure(problem);
  if (!wrong.empty()) return failed;
  return {std::move(options), 0};
}

}  // namespace ddprun::launcher
