// SPDX-License-Identifier: Apache-2.0
// While this lives, no further thread can be started in this process.
#pragma once

#include <pthread.h>

#include <cstddef>

namespace ddprun::test {

class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 60);  // more than any address space
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace ddprun::test
