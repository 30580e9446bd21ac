// SPDX-License-Identifier: Apache-2.0
// The objects that a job is to Kubernetes (docs/submit.md, "Kubernetes"): a headless service and an
// Indexed Job, or a JobSet. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "ctl/submit/job_file.h"

namespace ddprun::submit {

// `suffix` makes the objects' name, NAME-suffix, one of this submission's own. Throws
// Error(kInvalidArgument), a line for each: what Kubernetes needs, and this job lacks.
std::vector<boost::json::object> kubernetes_objects(const JobFile& job, const std::string& suffix);

// As kubectl reads them from its standard input.
std::string kubernetes_manifest(const std::vector<boost::json::object>& objects);

// The label that all objects of a job have, and its pods; and what all jobs of ddprun's have.
inline constexpr char kInstanceLabel[] = "app.kubernetes.io/instance";
inline constexpr char kManagedByLabel[] = "app.kubernetes.io/managed-by";
// An annotation of a job that somebody asked to end.
inline constexpr char kCancelledAnnotation[] = "ddprun/cancelled";

}  // namespace ddprun::submit
