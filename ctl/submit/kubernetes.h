// SPDX-License-Identifier: Apache-2.0
// The objects that a job is to Kubernetes (docs/submit.md, "Kubernetes"): a headless service and an
// Indexed Job, or a JobSet. Also what kubectl says of them. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/submit/job_file.h"
#include "ctl/submit/scheduler.h"

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

// As YAML, for people who read manifests. Blocks of two blanks. A text is plain only if no YAML
// reader, of version 1.1 or 1.2, takes it for anything else. Otherwise it is as JSON has it.
std::string to_yaml(const boost::json::value& value);

// "NAMESPACE/NAME", and "NAMESPACE/jobset/NAME".
struct KubernetesId {
  std::string kube_namespace, name;
  bool is_set = false;

  std::string text() const;  // with "kubernetes:"
};
// Throws Error(kInvalidArgument) where it is none: it becomes words of a command line.
KubernetesId parse_kubernetes_id(const std::string& text);

// Parses `kubectl get … -o json`: a list of Jobs or JobSets, and of pods. Returns live ones first,
// then the latest. Throws Error(kProtocol) if it isn't one.
std::vector<JobState> parse_kubernetes_list(std::string_view text);

// Lines of pods as `kubectl logs --prefix --timestamps` has them, each of them once, however often
// kubectl is started anew. Pure.
class PodLines {
 public:
  // Whole lines that are new, without their times.
  std::string take(std::string_view text);
  // kubectl has ended: returns the last line, if its end was missing. The next text may begin with
  // lines that were taken before.
  std::string end();

 private:
  struct Mark {
    std::int64_t latest = 0;  // ns since 1970
    int num_then = 0;         // lines of that very time
  };
  // Takes a line without its end. Returns its new text, with an end; empty: it isn't new.
  std::string new_of(std::string_view line);

  std::string held_;
  std::map<std::string, Mark> before_, now_;  // by pod: as it was when kubectl began, and as it is
  std::map<std::string, int> again_;          // lines of the mark of before that are back
};

// "2027-01-15T08:00:09.123456789Z", also with an offset → ns since 1970; -1: it is none.
std::int64_t log_time_of(std::string_view text);

}  // namespace ddprun::submit
