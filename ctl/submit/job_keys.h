// SPDX-License-Identifier: Apache-2.0
// The keys of a job file: what each one may be, and where it goes. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/toml.h"
#include "ctl/submit/job_file.h"

namespace ddprun::submit {

struct JobKey {
  std::string name;  // "to.slurm.partition"; one that ends in "." is a table of names of the user's
  // Takes the value; `base` as in JobFile::parse(). Returns "" or what it wants: "wants a text".
  std::function<std::string(const toml::node& value, const std::string& base, JobFile& job)> set;
  // Of a table of names, in place of `set`: takes one of its entries. Returns likewise.
  std::function<std::string(const std::string& name, const toml::node& value, JobFile& job)>
      set_entry = {};
};

// In the order of docs/submit.md.
const std::vector<JobKey>& job_keys();

}  // namespace ddprun::submit
