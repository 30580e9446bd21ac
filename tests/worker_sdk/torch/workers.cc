// SPDX-License-Identifier: Apache-2.0
// The workers of these tests are one program, so that LibTorch's headers are read once for several.
// The name of the call, a symbolic link, chooses the worker.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <iostream>

namespace averager_worker {
int program(int argc, char** argv);
}
namespace checkpoint_worker {
int program(int argc, char** argv);
}
namespace ddp_modes_worker {
int program(int argc, char** argv);
}
namespace ddp_worker {
int program(int argc, char** argv);
}
namespace kept_memory_worker {
int program(int argc, char** argv);
}
namespace models_worker {
int program(int argc, char** argv);
}
namespace optim_worker {
int program(int argc, char** argv);
}
namespace tensor_parallel_worker {
int program(int argc, char** argv);
}
namespace zero_worker {
int program(int argc, char** argv);
}
namespace pipeline_worker {
int program(int argc, char** argv);
}

namespace {

struct Worker {
  const char* name;
  int (*program)(int argc, char** argv);
};

constexpr Worker kWorkers[] = {
    {"averager_worker", averager_worker::program},
    {"checkpoint_worker", checkpoint_worker::program},
    {"ddp_modes_worker", ddp_modes_worker::program},
    {"ddp_worker", ddp_worker::program},
    {"kept_memory_worker", kept_memory_worker::program},
    {"models_worker", models_worker::program},
    {"optim_worker", optim_worker::program},
    {"tensor_parallel_worker", tensor_parallel_worker::program},
    {"zero_worker", zero_worker::program},
    {"pipeline_worker", pipeline_worker::program},
};

}  // namespace

int main(int argc, char** argv) {
  const char* slash = std::strrchr(argv[0], '/');
  const char* name = slash ? slash + 1 : argv[0];
  for (const Worker& worker : kWorkers) {
    if (std::strcmp(worker.name, name) == 0) {
      const int status = worker.program(argc, argv);
      // Destroying LibTorch's static objects would take nearly as long as making them.
      std::cout.flush();
      std::fflush(nullptr);
      ::_exit(status);
    }
  }
  std::fprintf(stderr, "%s: called by a name that is no worker's\n", name);
  return 2;
}
