// SPDX-License-Identifier: Apache-2.0
#include "ctl/jobs_command.h"

#include <CLI/CLI.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <cstdio>
#include <iomanip>
#include <sstream>

#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"
#include "ctl/fetch.h"

namespace ddprun::ctl {

namespace json = boost::json;

JobsCommand::JobsCommand(CLI::App& app)
    : command_(app.add_subcommand("jobs", "List the jobs of a rendezvous.")) {
  command_->add_option("--rdzv-endpoint", endpoint_, "HOST:PORT of the rendezvous")
      ->envname(env::kRdzvEndpoint)
      ->capture_default_str();
  command_->add_option("--token-file", token_file_, "The rendezvous' token; mode 600")
      ->envname(env::kTokenFile);
  command_->add_option("--tls-ca", tls_.ca, "Authority of the rendezvous' certificate (PEM)");
  command_->add_option("--tls-cert", tls_.cert, "This side's certificate (PEM), if it wants one");
  command_->add_option("--tls-key", tls_.key, "Its key (PEM), mode 600");
  command_->add_flag("--json", json_, "All that it says, as JSON");
}

ExitCode JobsCommand::run() const {
  FetchOptions options;
  const auto endpoint = parse_endpoint(endpoint_, kDefaultRendezvousPort);
  if (!endpoint || endpoint->host.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--rdzv-endpoint=" + endpoint_ + ": wants HOST or HOST:PORT");
  }
  options.endpoint = *endpoint;
  options.target = "/v1/jobs";
  if (!token_file_.empty()) options.token = Secret::from_file(token_file_);
  if (tls_.any()) options.tls = security::make_client_context(tls_);
  const std::string page = fetch(options);
  const std::string text = json_ ? page : jobs_table(page);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0 ? ExitCode::kOk : ExitCode::kOutputLost;
}

std::string jobs_table(const std::string& page) {
  std::ostringstream table;
  const auto row = [&table](const auto& id, const auto& phase, const auto& round,
                            const auto& nodes) {
    table << std::left << std::setw(32) << id << ' ' << std::setw(10) << phase << ' '
          << std::setw(6) << round << ' ' << nodes << '\n';
  };
  try {
    const json::value all = json::parse(page);
    const json::array& jobs = all.at("jobs").as_array();
    const json::value* journal = all.as_object().if_contains("journal");
    if (journal != nullptr && journal->is_object() && !journal->at("kept").as_bool()) {
      table << "not kept now, jobs go on in memory: "
            << one_line(std::string(journal->at("trouble").as_string())) << '\n';
    }
    if (jobs.empty()) return table.str() + "no jobs\n";
    row("JOB", "PHASE", "ROUND", "NODES");
    for (const json::value& job : jobs) {
      row(one_line(std::string(job.at("run_id").as_string())),
          one_line(std::string(job.at("phase").as_string())), job.at("round").to_number<int>(),
          concat(job.at("nodes").as_array().size(), " of ", job.at("max_nodes").to_number<int>()));
    }
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kProtocol, concat("/v1/jobs is not what was expected: ", error.what()));
  }
  return table.str();
}

}  // namespace ddprun::ctl
