// SPDX-License-Identifier: Apache-2.0
#include "ctl/schedulers.h"

#include "common/environment.h"
#include "common/error.h"
#include "common/log.h"
#include "ctl/submit/flag_check.h"
#include "ctl/submit/job_states.h"
#include "ctl/submit/kubernetes_scheduler.h"
#include "ctl/submit/nodes_scheduler.h"
#include "ctl/submit/slurm_scheduler.h"
#include "ctl/submit/ssh_scheduler.h"

namespace ddprun::ctl {

std::unique_ptr<submit::Scheduler> make_scheduler(const std::string& place,
                                                  const EndpointFlags& endpoint,
                                                  const std::string& context) {
  if (!context.empty() && place != "kubernetes") {
    throw Error(ErrorCode::kInvalidArgument,
                "--context=" + one_line(context) + " is of --to kubernetes alone");
  }
  if (place == "slurm") {
    return std::make_unique<submit::SlurmScheduler>(current_environment(), submit::ddprun_beside());
  }
  if (place == "ssh") {
    return std::make_unique<submit::SshScheduler>(current_environment(), submit::ddprun_beside());
  }
  if (place == "kubernetes") return std::make_unique<submit::KubernetesScheduler>(context);
  if (place == "nodes") {
    const auto find_queue = [&endpoint](const submit::NodesKeys& keys) {
      security::TlsFiles tls;
      tls.ca = keys.tls_ca;
      tls.cert = keys.tls_cert;
      tls.key = keys.tls_key;
      return submit::NodesScheduler::Queue{
          .client = endpoint.queue_of(keys.endpoint, keys.token_file, tls),
          .flags = endpoint.flags_of(keys.endpoint, keys.token_file, tls)};
    };
    return std::make_unique<submit::NodesScheduler>(current_environment(), submit::ddprun_beside(),
                                                    find_queue);
  }
  throw Error(ErrorCode::kUnsupported, "--to " + one_line(place) + " is not known");
}

NamedJob find_job(const std::string& job, const std::string& place, const EndpointFlags& endpoint,
                  const std::string& context) {
  if (const auto id = submit::parse_job_id(job)) {
    if (!place.empty() && place != id->place) {
      throw Error(ErrorCode::kInvalidArgument, one_line(job) + " is not a job of --to " + place);
    }
    return {make_scheduler(id->place, endpoint, context), id->id};
  }
  if (place.empty() || job.empty()) {
    std::string known;
    for (const std::string& each : submit::place_names()) {
      known += (known.empty() ? "" : ", ") + each + ":…";
    }
    throw Error(ErrorCode::kInvalidArgument,
                "\"" + one_line(job) + "\" is no job's id (" + known + "); or say --to");
  }
  return {make_scheduler(place, endpoint, context), job};
}

}  // namespace ddprun::ctl
