// SPDX-License-Identifier: Apache-2.0
// Which PyTorch, CUDA and NCCL a Python worker would load, by the names of what pip installed: no
// Python is started.
#pragma once

#include <string>
#include <vector>

#include "common/environment.h"
#include "ctl/doctor/readings.h"

namespace ddprun::doctor {

struct WorkerPackages {
  std::string folder;             // "/opt/venv/lib/python3.11/site-packages"; empty: no PyTorch
  std::string torch, cuda, nccl;  // "2.11.0+cu128", "12.8", "2.27.5"; empty: not known
  std::string nccl_cuda;          // "12": of the CUDA that this NCCL is for
};

// Where a worker's packages may be, the first one that counts first: the environment of
// $PYTHON_EXEC, of this program's own folder, $VIRTUAL_ENV, $CONDA_PREFIX, then the system's.
std::vector<std::string> package_prefixes(const Environment& environment,
                                          const std::string& own_folder);

// Of the first one that has PyTorch.
WorkerPackages find_packages(const Root& root, const std::vector<std::string>& prefixes);

}  // namespace ddprun::doctor
