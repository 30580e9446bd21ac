// SPDX-License-Identifier: Apache-2.0
#include "agent/observe/observer.h"

#include <sys/stat.h>

#include <cerrno>
#include <fstream>

#include "agent/python_texts.h"
#include "common/error.h"

namespace ddprun::agent {

std::string observer_folder(const std::string& socket_directory) {
  return socket_directory + "/observe";
}

void put_observer(const std::string& socket_directory) {
  const std::string folder = observer_folder(socket_directory);
  if (::mkdir(folder.c_str(), S_IRWXU) != 0) throw_system_error("mkdir " + folder, errno);
  std::ofstream file(folder + "/sitecustomize.py");
  file << kObserverText;
  file.close();
  if (!file) throw_system_error("writing " + folder, errno);
}

}  // namespace ddprun::agent
