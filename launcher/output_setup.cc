// SPDX-License-Identifier: Apache-2.0
#include "launcher/output_setup.h"

#include "agent/output/log_tree.h"
#include "common/env_names.h"
#include "common/random_id.h"
#include "launcher/program_lookup.h"

namespace ddprun::launcher {
namespace {

// What is shown as well needs no file; what is not shown may not be lost.
bool needs_files(const agent::OutputOptions& options) {
  return !options.redirects.empty() || !options.stdout_filters.empty() ||
         !options.stderr_filters.empty();
}

}  // namespace

OutputSetup set_up_output(agent::OutputOptions& options, const Environment& environment,
                          const std::string& argv0, const std::string& temporary_directory,
                          const std::string& log_dir_given, LogDirectory directory) {
  options.inherit = is_torchrun(argv0);
  // To torchrun an empty template is none, and its default counts.
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
