add_lockstep_test(train_dataset_test TORCH SOURCES train_dataset_test.cpp train_idx_file_test.cpp
  DEPENDS lockstep::train ZLIB::ZLIB LABEL unit)
add_lockstep_test(train_sampler_test TORCH SOURCES train_sampler_test.cpp
  DEPENDS lockstep::train LABEL unit)
add_lockstep_test(train_data_parallel_test TORCH
  SOURCES train_data_parallel_test.cpp train_replicas_test.cpp DEPENDS lockstep::train LABEL unit)
add_lockstep_test(train_optim_test TORCH SOURCES train_optim_test.cpp DEPENDS lockstep::train LABEL unit)
add_lockstep_test(train_seeding_test TORCH SOURCES train_seeding_test.cpp DEPENDS lockstep::train LABEL unit)
