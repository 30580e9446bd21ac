// SPDX-License-Identifier: Apache-2.0
// Makes a job's Kubernetes objects (docs/submit.md, "Kubernetes"): a headless service and an
// Indexed Job, or a JobSet. Also parses what kubectl prints of them. Pure.
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

// Makes the objects. They are named NAME-suffix, which is unique to this submission. Throws
// Error(kInvalidArgument) with a line for each thing that Kubernetes needs and this job lacks.
std::vector<boost::json::object> kubernetes_objects(const JobFile& job, const std::string& suffix);

// Writes the objects as kubectl reads them from its standard input.
std::string kubernetes_manifest(const std::vector<boost::json::object>& objects);

// Labels: the first is one job's, on its objects and pods; the second is on those of all ddprun
// jobs.
inline constexpr char kInstanceLabel[] = "app.kubernetes.io/instance";
inline constexpr char kManagedByLabel[] = "app.kubernetes.io/managed-by";
// The annotation of a job that somebody asked to end.
inline constexpr char kCancelledAnnotation[] = "ddprun/cancelled";

// Writes YAML for people who read manifests, indented by two blanks. A text stands without quotes
// only if every YAML reader, of version 1.1 or 1.2, reads it as that text. Else it is as in JSON.
std::string to_yaml(const boost::json::value& value);

// An id: "NAMESPACE/NAME", or "NAMESPACE/jobset/NAME".
struct KubernetesId {
  std::string kube_namespace, name;
  bool is_set = false;

  std::string text() const;  // begins with "kubernetes:"
};
// Throws Error(kInvalidArgument) if it is no id, since its parts go into a command line.
KubernetesId parse_kubernetes_id(const std::string& text);

// Parses `kubectl get … -o json`: a list of Jobs or JobSets, and of pods. Returns live jobs first,
// then the latest ones. Throws Error(kProtocol) if it isn't such a list.
std::vector<JobState> parse_kubernetes_list(std::string_view text);

// Takes the lines of pods as `kubectl logs --prefix --timestamps` prints them. Returns each line
// once, however often kubectl is restarted. Pure.
class PodLines {
 public:
  // Returns the new whole lines, without their times.
  std::string take(std::string_view text);
  // Called when kubectl has ended: returns the last line, if it had no end. The next text may
  // repeat lines that were taken before.
  std::string end();

 private:
  struct Mark {
    std::int64_t latest = 0;  // ns since 1970
    int num_then = 0;         // lines with exactly that time
  };
  // Takes a line without its end. Returns its text with an end; empty: it isn't new.
  std::string new_of(std::string_view line);

  std::string held_;
  std::map<std::string, Mark> before_, now_;  // by pod: when kubectl began, and now
  std::map<std::string, int> again_;          // repeated lines with the time of before_'s mark
};

// "2027-01-15T08:00:09.123456789Z", or with an offset → ns since 1970; -1: the text isn't a time.
std::int64_t log_time_of(std::string_view text);

}  // namespace ddprun::submit
