// SPDX-License-Identifier: Apache-2.0
// What kubectl says of ddprun's jobs. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// "NAMESPACE/NAME", and "NAMESPACE/jobset/NAME".
struct KubernetesId {
  std::string kube_namespace, name;
  bool is_set = false;

  std::string text() const;  // with "kubernetes:"
};
// Throws Error(kInvalidArgument) where it is none: it becomes words of a command line.
KubernetesId parse_kubernetes_id(const std::string& text);

// Of `kubectl get … -o json`: a list of Jobs or JobSets, and of pods. Live ones first, then the
// latest. Throws Error(kProtocol) where it isn't one.
std::vector<JobState> parse_kubernetes_list(std::string_view text);

}  // namespace ddprun::submit
