// SPDX-License-Identifier: Apache-2.0
#include "launcher/gangs/run_gang.h"

#include <pwd.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "common/log.h"
#include "common/random_id.h"
#include "common/secret.h"
#include "launcher/gangs/gang_job.h"
#include "launcher/hosts/fleet_plan.h"
#include "rendezvous/gangs/gang_json.h"

namespace ddprun::launcher {

GangRequest prepare_gang(const CommandLine& line, const Environment& environment) {
  GangOrigin origin;
  const passwd* entry = ::getpwuid(::geteuid());
  if (entry != nullptr) origin.user = entry->pw_name;
  origin.uid = ::geteuid();
  origin.directory = working_directory(environment);
  origin.random_id = random_id();
  GangRequest request = plan_gang(line, environment, origin);
  if (origin.directory.empty()) {
    request.problems = {"the working directory is gone: start ddprun in one that is there"};
  }
  return request;
}

std::string gang_to_text(const GangRequest& request) {
  gangs::GangSpec spec = request.spec;
  for (std::string& variable : spec.environment) variable.resize(variable.find('='));
  return gangs::gang_to_json(spec) + "\n";
}

int run_gang(GangRequest request, const LaunchConfig& config, ServiceManager manager) {
  pages::GangClientOptions client;
  client.endpoints = request.endpoints;
  client.is_patient = false;  // GangJob is, and hears signals meanwhile
  if (!config.token_file.empty())
    client.token = Secret::from_flag("--token-file", config.token_file);
  if (config.tls.any()) client.tls = security::make_client_context(config.tls);
  return std::make_unique<GangJob>(std::move(request), std::move(client),
                                   config.rendezvous_lost_timeout, std::move(manager))
      ->run();
}

}  // namespace ddprun::launcher
